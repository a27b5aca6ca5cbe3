package main

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// arguments of each command: the least, and the most.
var arguments = map[string][2]int{
	"GET": {1, 1}, "SET": {2, 2}, "DEL": {1, 9}, "RENAME": {2, 2},
	"LPUSH": {2, 2}, "RPUSH": {2, 2}, "LPOP": {1, 1}, "RPOP": {1, 1}, "LRANGE": {3, 3}, "LMOVE": {4, 4},
	"BLPOP": {2, 2}, "BLMOVE": {5, 5},
	"HSET": {3, 3}, "HINCRBY": {3, 3}, "HDEL": {2, 2}, "HGETALL": {1, 1},
	"SADD": {2, 2}, "SREM": {2, 2}, "SMEMBERS": {1, 1},
	"ZADD": {3, 3}, "ZINCRBY": {3, 3}, "ZPOPMIN": {1, 1}, "BZPOPMIN": {2, 2}, "ZRANGE": {4, 4},
	"XADD": {4, 4}, "XLEN": {1, 1}, "XRANGE": {3, 3}, "XDEL": {2, 2}, "XTRIM": {3, 3},
	"XGROUP": {5, 5}, "XREADGROUP": {8, 8}, "XACK": {3, 3}, "XPENDING": {2, 2},
	"CHANGE": {4, 4}, "CARRY": {3, 3},
}

// checkCommand says what is wrong with a command.
func checkCommand(command []string) error {
	if len(command) == 0 {
		return fmt.Errorf("an empty command")
	}
	limits, known := arguments[command[0]]
	if count := len(command) - 1; !known || count < limits[0] || count > limits[1] {
		return fmt.Errorf("no such command: `%s`", strings.Join(command, " "))
	}
	return nil
}

func (in *edit) reply(name string, args []string) interface{} {
	switch name {
	case "DEL":
		return in.remove(args)
	case "RENAME":
		return in.rename(args[0], args[1])
	case "GET", "SET":
		return in.text(name, args)
	case "CHANGE":
		return in.compareAndChange(args)
	case "CARRY":
		return in.carry(args)
	}
	switch name[0] {
	case 'H':
		return in.onHash(name, args)
	case 'S':
		return in.onSet(name, args)
	case 'X':
		return in.onStream(name, args)
	case 'Z':
		return in.onSorted(name, args)
	}
	if name == "BZPOPMIN" {
		return in.popLeast(args[0], true)
	}
	return in.onList(name, args)
}

// text is a plain string.
type text string

func (s *text) text() string  { return string(*s) }
func (s *text) copied() value { other := *s; return &other }
func (s *text) isEmpty() bool { return false }

func (in *edit) text(name string, args []string) interface{} {
	if name == "SET" {
		written := text(args[1])
		in.values[args[0]], in.own[args[0]] = &written, true
		return "OK"
	}
	switch found := in.values[args[0]].(type) {
	case nil:
		return nil
	case *text:
		return string(*found)
	default:
		return failure("WRONGTYPE")
	}
}

// list holds its items from the head on.
type list struct{ items []string }

func (l *list) text() string  { return "[" + strings.Join(l.items, " ") + "]" }
func (l *list) copied() value { return &list{append([]string{}, l.items...)} }
func (l *list) isEmpty() bool { return len(l.items) == 0 }

func newList() *list { return &list{} }

// push adds an item at an end, LEFT or RIGHT.
func (l *list) push(end, item string) {
	if end == "LEFT" {
		l.items = append([]string{item}, l.items...)
	} else {
		l.items = append(l.items, item)
	}
}

// pop takes an item from an end; nil: there is none.
func (l *list) pop(end string) interface{} {
	if len(l.items) == 0 {
		return nil
	}
	at := 0
	if end != "LEFT" {
		at = len(l.items) - 1
	}
	item := l.items[at]
	l.items = append(l.items[:at:at], l.items[at+1:]...)
	return item
}

func (in *edit) onList(name string, args []string) interface{} {
	found, is := open(in, args[0], newList)
	if !is {
		return failure("WRONGTYPE")
	}
	switch name {
	case "LPUSH", "RPUSH":
		found.push(map[byte]string{'L': "LEFT", 'R': "RIGHT"}[name[0]], args[1])
		return number(len(found.items))
	case "LPOP":
		return found.pop("LEFT")
	case "RPOP":
		return found.pop("RIGHT")
	case "BLPOP":
		if item := found.pop("LEFT"); item != nil {
			return []interface{}{args[0], item}
		}
		return nil
	case "LRANGE":
		return texts(found.items)
	}
	to, is := open(in, args[1], newList)
	if !is {
		return failure("WRONGTYPE")
	}
	item := found.pop(args[2])
	if item != nil {
		to.push(args[3], item.(string))
	}
	return item
}

// texts as a reply.
func texts(all []string) interface{} {
	reply := []interface{}{}
	for _, one := range all {
		reply = append(reply, one)
	}
	return reply
}

// hash is a map of fields.
type hash map[string]string

func (h hash) text() string  { return fmt.Sprint(map[string]string(h)) }
func (h hash) isEmpty() bool { return len(h) == 0 }
func (h hash) copied() value {
	other := hash{}
	for field, value := range h {
		other[field] = value
	}
	return other
}

func newHash() hash { return hash{} }

func (in *edit) onHash(name string, args []string) interface{} {
	found, is := open(in, args[0], newHash)
	if !is {
		return failure("WRONGTYPE")
	}
	switch name {
	case "HSET":
		_, there := found[args[1]]
		found[args[1]] = args[2]
		return number(truth(!there))
	case "HINCRBY":
		sum, failed := sumOf(found[args[1]], args[2])
		if failed != nil {
			return failure("ERR")
		}
		found[args[1]] = strconv.Itoa(sum)
		return number(sum)
	case "HDEL":
		_, there := found[args[1]]
		delete(found, args[1])
		return number(truth(there))
	default:
		all := []interface{}{}
		for field, value := range found {
			all = append(all, field, value)
		}
		return inOrder(all, 2)
	}
}

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// sumOf adds to a number, which is 0 if it is absent.
func sumOf(before, by string) (int, error) {
	if before == "" {
		before = "0"
	}
	number, err := strconv.Atoi(before)
	if err != nil {
		return 0, err
	}
	added, err := strconv.Atoi(by)
	return number + added, err
}

// set of members.
type set map[string]bool

func (s set) text() string  { return fmt.Sprint(map[string]bool(s)) }
func (s set) isEmpty() bool { return len(s) == 0 }
func (s set) copied() value {
	other := set{}
	for member := range s {
		other[member] = true
	}
	return other
}

func newSet() set { return set{} }

func (in *edit) onSet(name string, args []string) interface{} {
	found, is := open(in, args[0], newSet)
	if !is {
		return failure("WRONGTYPE")
	}
	switch name {
	case "SADD":
		there := found[args[1]]
		found[args[1]] = true
		return number(truth(!there))
	case "SREM":
		there := found[args[1]]
		delete(found, args[1])
		return number(truth(there))
	default:
		all := []string{}
		for member := range found {
			all = append(all, member)
		}
		sort.Strings(all)
		return inOrder(texts(all), 1)
	}
}

// sortedSet has whole numbers as scores.
type sortedSet map[string]int

func (s sortedSet) text() string  { return fmt.Sprint(map[string]int(s)) }
func (s sortedSet) isEmpty() bool { return len(s) == 0 }
func (s sortedSet) copied() value {
	other := sortedSet{}
	for member, score := range s {
		other[member] = score
	}
	return other
}

func newSorted() sortedSet { return sortedSet{} }

// inOrder gives the members in the order of scores, then of bytes.
func (s sortedSet) inOrder() []string {
	all := []string{}
	for member := range s {
		all = append(all, member)
	}
	sort.Slice(all, func(i, j int) bool {
		if s[all[i]] != s[all[j]] {
			return s[all[i]] < s[all[j]]
		}
		return all[i] < all[j]
	})
	return all
}

func (in *edit) onSorted(name string, args []string) interface{} {
	if name == "ZPOPMIN" {
		return in.popLeast(args[0], false)
	}
	found, is := open(in, args[0], newSorted)
	if !is {
		return failure("WRONGTYPE")
	}
	if name == "ZRANGE" {
		all := []interface{}{}
		for _, member := range found.inOrder() {
			all = append(all, member, strconv.Itoa(found[member]))
		}
		return all
	}
	_, there := found[args[2]]
	score, failed := strconv.Atoi(args[1])
	if failed != nil {
		return failure("ERR")
	}
	if name == "ZINCRBY" {
		found[args[2]] += score
		return strconv.Itoa(found[args[2]])
	}
	found[args[2]] = score
	return number(truth(!there))
}

// popLeast is ZPOPMIN, or BZPOPMIN, whose reply begins with the key.
func (in *edit) popLeast(name string, withName bool) interface{} {
	found, is := open(in, name, newSorted)
	switch {
	case !is:
		return failure("WRONGTYPE")
	case len(found) == 0 && withName:
		return nil
	case len(found) == 0:
		return []interface{}{}
	}
	member := found.inOrder()[0]
	popped := []interface{}{member, strconv.Itoa(found[member])}
	delete(found, member)
	if withName {
		return append([]interface{}{name}, popped...)
	}
	return popped
}

// compareAndChange is a script: if the field `state` of the hash args[0] is args[2] (an empty text: it is absent), it becomes
// args[3], and args[3] is appended to the list args[1]. The reply is 1, or the text that was there.
func (in *edit) compareAndChange(args []string) interface{} {
	found, isHash := open(in, args[0], newHash)
	log, isList := open(in, args[1], newList)
	if !isHash || !isList {
		return failure("WRONGTYPE")
	}
	if found["state"] != args[2] {
		return found["state"]
	}
	found["state"] = args[3]
	log.push("RIGHT", args[3])
	return number(1)
}

// carry is a script: it takes the first item of the list args[0] and adds it to the sorted set args[1], with the score args[2].
// The reply is the item, or nil.
func (in *edit) carry(args []string) interface{} {
	from, isList := open(in, args[0], newList)
	to, isSorted := open(in, args[1], newSorted)
	score, failed := strconv.Atoi(args[2])
	if !isList || !isSorted || failed != nil {
		return failure("WRONGTYPE")
	}
	item := from.pop("LEFT")
	if item != nil {
		to[item.(string)] = score
	}
	return item
}
