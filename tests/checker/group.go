package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"reflect"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Group is the state of a group of keys that one command or transaction may change together. It is never changed: a step makes
// another one.
type Group struct {
	values map[string]value
	// text is the same for equal states alone.
	text string
}

// value of a key. Its text is the same for equal values alone. A step changes a copy.
type value interface {
	text() string
	copied() value
	// isEmpty: the key is removed, as in Redis.
	isEmpty() bool
}

// failure is the reply of a command that changed nothing; its text is the first word of the error.
type failure string

// groups is the model of a group of keys. For operations of unknown outcome see the model of one key.
var groups = porcupine.Model{
	Init: func() interface{} { return Group{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		in, out := input.(Input), output.(*Output)
		replies, after := state.(Group).run(in.Commands)
		if out != nil && !agree(in.Commands, replies, out.Replies) {
			return false, state
		}
		return true, after
	},
	Equal: func(one, other interface{}) bool { return one.(Group).text == other.(Group).text },
	Hash: func(state interface{}) uint64 {
		hash := fnv.New64a()
		hash.Write([]byte(state.(Group).text))
		return hash.Sum64()
	},
	DescribeOperation: func(input, output interface{}) string {
		var asked []string
		for _, command := range input.(Input).Commands {
			asked = append(asked, strings.Join(command, " "))
		}
		answer := "unknown"
		if out := output.(*Output); out != nil {
			text, _ := json.Marshal(out.Replies)
			answer = string(text)
		}
		return strings.Join(asked, "; ") + " -> " + answer
	},
	DescribeState: func(state interface{}) string { return "{ " + state.(Group).text + "}" },
}

// run runs commands together; it returns their replies and the state after them.
func (group Group) run(commands [][]string) ([]interface{}, Group) {
	after := edit{values: map[string]value{}, own: map[string]bool{}}
	for name, value := range group.values {
		after.values[name] = value
	}
	var replies []interface{}
	for _, command := range commands {
		replies = append(replies, after.run(command))
	}
	return replies, Group{values: after.values, text: textOf(after.values)}
}

func textOf(values map[string]value) string {
	var names []string
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	var text strings.Builder
	for _, name := range names {
		text.WriteString(name + "=" + values[name].text() + " ")
	}
	return text.String()
}

// agree says whether the replies found are those that the model gives.
func agree(commands [][]string, want, found []interface{}) bool {
	if len(want) != len(found) {
		return false
	}
	for i, command := range commands {
		if reason, failed := want[i].(failure); failed {
			answer, is := found[i].(map[string]interface{})
			if !is || answer["error"] != string(reason) {
				return false
			}
			continue
		}
		answer := found[i]
		switch command[0] {
		case "SMEMBERS":
			answer = inOrder(answer, 1)
		case "HGETALL":
			answer = inOrder(answer, 2)
		}
		if !reflect.DeepEqual(want[i], answer) {
			return false
		}
	}
	return true
}

// inOrder sorts the elements of a reply that may come in any order; each has `width` parts.
func inOrder(reply interface{}, width int) interface{} {
	parts, is := reply.([]interface{})
	if !is || len(parts)%width != 0 {
		return reply
	}
	var elements [][]interface{}
	for at := 0; at < len(parts); at += width {
		elements = append(elements, parts[at:at+width])
	}
	sort.Slice(elements, func(i, j int) bool { return fmt.Sprint(elements[i]) < fmt.Sprint(elements[j]) })
	all := []interface{}{}
	for _, element := range elements {
		all = append(all, element...)
	}
	return all
}

// edit is a state in the middle of a step.
type edit struct {
	values map[string]value
	// own are the names of the values that this step has copied.
	own map[string]bool
}

// open gives the value of a key, of a type that `made` makes; absent: a new one. The step may change it. It is nil if the key
// has another type.
func open[T value](in *edit, name string, made func() T) (T, bool) {
	found, there := in.values[name]
	if !there {
		found = made()
	} else if !in.own[name] {
		found = found.copied()
	}
	typed, is := found.(T)
	if is {
		in.values[name], in.own[name] = found, true
	}
	return typed, is
}

// swept removes the keys whose values are empty.
func (in *edit) swept() {
	for name, value := range in.values {
		if value.isEmpty() {
			delete(in.values, name)
			delete(in.own, name)
		}
	}
}

func (in *edit) run(command []string) interface{} {
	reply := in.reply(command[0], command[1:])
	in.swept()
	return reply
}

// remove removes keys; it returns how many there were.
func (in *edit) remove(names []string) interface{} {
	count := 0
	for _, name := range names {
		if _, there := in.values[name]; there {
			delete(in.values, name)
			delete(in.own, name)
			count++
		}
	}
	return number(count)
}

// rename moves the value of a key to another one.
func (in *edit) rename(from, to string) interface{} {
	moved, there := in.values[from]
	if !there {
		return failure("ERR")
	}
	delete(in.values, from)
	in.values[to] = moved
	in.own[to] = in.own[from]
	return "OK"
}

// number is a number as JSON gives it.
func number(n int) interface{} {
	return float64(n)
}
