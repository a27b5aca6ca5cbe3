package main

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// stream has ids 1-0, 1-1 and so on: every entry is added with the id 1-*.
type stream struct {
	entries []entry
	// next is the second number of the next id.
	next   int
	groups map[string]consumers
}

type entry struct {
	number       int
	field, value string
}

// consumers are a group of a stream.
type consumers struct {
	// next is the second number of the first id that is not delivered.
	next int
	// pending are the consumers of the delivered entries.
	pending map[int]string
}

func (s *stream) text() string  { return fmt.Sprint(s.entries, s.next, s.groups) }
func (s *stream) isEmpty() bool { return s.next == 0 && len(s.groups) == 0 }
func (s *stream) copied() value {
	other := &stream{append([]entry{}, s.entries...), s.next, map[string]consumers{}}
	for name, group := range s.groups {
		pending := map[int]string{}
		for number, consumer := range group.pending {
			pending[number] = consumer
		}
		other.groups[name] = consumers{group.next, pending}
	}
	return other
}

func newStream() *stream { return &stream{groups: map[string]consumers{}} }

func id(number int) string {
	return "1-" + strconv.Itoa(number)
}

// numberOf an id, -1: it is not of this form.
func numberOf(id string) int {
	number, failed := strconv.Atoi(strings.TrimPrefix(id, "1-"))
	if failed != nil || !strings.HasPrefix(id, "1-") {
		return -1
	}
	return number
}

func (e entry) reply() interface{} {
	return []interface{}{id(e.number), []interface{}{e.field, e.value}}
}

func (in *edit) onStream(name string, args []string) interface{} {
	at := map[string]int{"XGROUP": 1, "XREADGROUP": 6}[name]
	found, is := open(in, args[at], newStream)
	if !is {
		return failure("WRONGTYPE")
	}
	switch name {
	case "XADD":
		found.entries = append(found.entries, entry{found.next, args[2], args[3]})
		found.next++
		return id(found.next - 1)
	case "XLEN":
		return number(len(found.entries))
	case "XRANGE":
		all := []interface{}{}
		for _, entry := range found.entries {
			all = append(all, entry.reply())
		}
		return all
	case "XDEL":
		for at, entry := range found.entries {
			if entry.number == numberOf(args[1]) {
				found.entries = append(found.entries[:at:at], found.entries[at+1:]...)
				return number(1)
			}
		}
		return number(0)
	case "XTRIM":
		kept, _ := strconv.Atoi(args[2])
		removed := max(0, len(found.entries)-kept)
		found.entries = found.entries[removed:]
		return number(removed)
	default:
		return found.onGroup(name, args)
	}
}

// onGroup runs a command on a group of consumers.
func (s *stream) onGroup(name string, args []string) interface{} {
	at := map[string]int{"XGROUP": 2, "XACK": 1, "XREADGROUP": 1, "XPENDING": 1}[name]
	group, there := s.groups[args[at]]
	switch {
	case name == "XGROUP" && there:
		return failure("BUSYGROUP")
	case name == "XGROUP":
		s.groups[args[at]] = consumers{pending: map[int]string{}}
		return "OK"
	case name == "XACK":
		_, is := group.pending[numberOf(args[2])]
		delete(group.pending, numberOf(args[2]))
		return number(truth(is))
	case !there:
		return failure("NOGROUP")
	case name == "XPENDING":
		return group.summary()
	}
	for _, entry := range s.entries {
		if entry.number >= group.next {
			group.next = entry.number + 1
			group.pending[entry.number] = args[2]
			s.groups[args[at]] = group
			return []interface{}{[]interface{}{args[6], []interface{}{entry.reply()}}}
		}
	}
	return nil
}

// summary is the reply of XPENDING.
func (group consumers) summary() interface{} {
	if len(group.pending) == 0 {
		return []interface{}{number(0), nil, nil, nil}
	}
	counts := map[string]int{}
	var numbers []int
	for number, consumer := range group.pending {
		counts[consumer]++
		numbers = append(numbers, number)
	}
	sort.Ints(numbers)
	each := []interface{}{}
	for consumer, count := range counts {
		each = append(each, []interface{}{consumer, strconv.Itoa(count)})
	}
	return []interface{}{number(len(numbers)), id(numbers[0]), id(numbers[len(numbers)-1]), inOrder(each, 1)}
}
