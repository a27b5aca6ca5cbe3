package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// State of one key.
type State struct {
	Present bool
	Value   string
	// Version is the one that the key has; where that is not Exact, or the key is absent, the least that it can be.
	Version uint64
	Exact   bool
}

// model is one key: what each operation may answer, and what it leaves behind.
//
// An operation of unknown outcome never returns, so the search may put it anywhere after its call: where it takes effect, or at
// the very end, which is as good as never. So its step always takes effect if it can.
var model = porcupine.Model{
	Init: func() interface{} { return State{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		return step(state.(State), input.(Input), output.(*Output))
	},
	Hash: func(state interface{}) uint64 {
		of := state.(State)
		hash := fnv.New64a()
		hash.Write([]byte(of.Value))
		return hash.Sum64() ^ of.Version<<2
	},
	DescribeOperation: describe,
	DescribeState: func(state interface{}) string {
		of := state.(State)
		if !of.Present {
			return "absent"
		}
		return fmt.Sprintf("%s (version %d)", of.Value, of.Version)
	},
}

func step(state State, in Input, out *Output) (bool, State) {
	switch in.Op {
	case "read":
		if state.Present != (out.Value != nil) || state.Present && state.Value != *out.Value {
			return false, state
		}
		return state.found(out.Version)
	case "increment":
		return increment(state, in, out)
	default:
		return change(state, in, out)
	}
}

// change is a write or a removal.
func change(state State, in Input, out *Output) (bool, State) {
	if out != nil && !out.applied() {
		return nothing(state, in, out)
	}
	possible, state := state.admits(in)
	switch {
	case !possible:
		return out == nil, state
	case in.Op == "write":
		if out != nil && out.Before != nil && !state.holds(out.Before) {
			return false, state
		}
		return state.becomes(in.Value, out)
	case out != nil:
		if !state.Present {
			return false, state
		}
		possible, state = state.found(out.Version)
	}
	return possible, State{Version: state.Version}
}

// nothing was done, it says: could that be?
func nothing(state State, in Input, out *Output) (bool, State) {
	if out.Version != 0 {
		if !state.Present {
			return false, state
		}
		var possible bool
		if possible, state = state.found(out.Version); !possible {
			return false, state
		}
	}
	if in.Op == "remove" && !state.Present {
		return true, state
	}
	switch in.If {
	case "absent":
		return state.Present, state
	case "present":
		return !state.Present, state
	case "version":
		return !state.Present || !state.Exact || state.Version != in.Version, state
	default:
		return false, state
	}
}

// admits says whether the operation's condition may hold; and what is known of the state if it does.
func (state State) admits(in Input) (bool, State) {
	switch in.If {
	case "absent":
		return !state.Present, state
	case "present":
		return state.Present, state
	case "version":
		if !state.Present {
			return false, state
		}
		return state.found(in.Version)
	default:
		return true, state
	}
}

// holds: the replaced text was this one.
func (state State) holds(before json.RawMessage) bool {
	var value *string
	if json.Unmarshal(before, &value) != nil {
		return false
	}
	if value == nil {
		return !state.Present
	}
	return state.Present && state.Value == *value
}

func increment(state State, in Input, out *Output) (bool, State) {
	var number int64
	if state.Present {
		var err error
		if number, err = strconv.ParseInt(state.Value, 10, 64); err != nil {
			return out == nil, state
		}
	}
	number += in.By
	if out != nil && *out.Number != number {
		return false, state
	}
	return state.becomes(strconv.FormatInt(number, 10), out)
}

// found: an object of this version (0: it was not said) was seen.
func (state State) found(version uint64) (bool, State) {
	if version == 0 {
		return true, state
	}
	if version < state.Version || state.Exact && version != state.Version {
		return false, state
	}
	state.Version, state.Exact = version, true
	return true, state
}

// becomes: a new value is written.
func (state State) becomes(value string, out *Output) (bool, State) {
	if out == nil || out.Version == 0 {
		return true, State{Present: true, Value: value, Version: state.Version + 1}
	}
	if out.Version <= state.Version {
		return false, state
	}
	return true, State{Present: true, Value: value, Version: out.Version, Exact: true}
}

func describe(input, output interface{}) string {
	in, out := input.(Input), output.(*Output)
	asked := in.Op
	switch in.Op {
	case "write":
		asked += " " + in.Value
	case "increment":
		asked += fmt.Sprintf(" by %d", in.By)
	}
	switch in.If {
	case "":
	case "version":
		asked += fmt.Sprintf(" if version %d", in.Version)
	default:
		asked += " if " + in.If
	}
	if out == nil {
		return asked + " -> unknown"
	}
	answer := ""
	switch {
	case in.Op == "read" && out.Value == nil:
		answer = "absent"
	case in.Op == "read":
		answer = *out.Value
	case in.Op == "increment":
		answer = fmt.Sprint(*out.Number)
	case out.applied():
		answer = "done"
	default:
		answer = "not done"
	}
	if out.Before != nil {
		answer += ", before " + string(out.Before)
	}
	if out.Version != 0 {
		answer += fmt.Sprintf(", version %d", out.Version)
	}
	return asked + " -> " + answer
}
