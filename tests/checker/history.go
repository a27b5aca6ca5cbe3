// Histories: what clients asked, what they were told, and when.
//
// A history is a file with one JSON object per line, one for each operation, in any order. Its fields:
//
//	client    number of the client that asked: shown, never relied on
//	key       the operation's only key; a key is absent when its history begins
//	op        read, write, remove, increment or commands
//	value     write: the text that is written. No two writes of a key write the same
//	by        increment: what is added, a whole number; an absent key counts as 0
//	if        write and remove, optional: absent, present or version: done only if the key is so
//	version   with "if":"version": the version that the key must have
//	call      nanoseconds of a monotonic clock, the same for the whole history, before the request was sent
//	return    the same, after the answer was there; not there: unknown outcome (see below)
//	out       what was answered; not there: unknown outcome
//
// and of out:
//
//	value     read: the text that is there. Not there (or null): the key is absent
//	number    increment: the sum
//	applied   write and remove: false = the condition did not hold, or there was nothing to remove; not there = true
//	before    write, optional: the text that it replaced; null = the key was absent
//	version   optional: the version that was read, written or removed; of a condition that failed the one that was found
//
// An operation `commands` is of a group of keys, and its fields are
//
//	key       the group's name: every operation of a group is `commands`. All keys of a group are absent when its history begins
//	commands  commands of Redis, each a list of words, in the form of commands.go; more than one: they are one transaction
//
// and of out:
//
//	replies   one for each command: a text, a number, null, or a list of these; of a refused command {"error":"its first word"}
//
// A version grows with each write of its key, also across removals. An operation of unknown outcome may have taken effect at any
// time after its call, or never; a read of unknown outcome says nothing and may be left out.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/anishathalye/porcupine"
)

// Input is what was asked.
type Input struct {
	Key     string `json:"key"`
	Op      string `json:"op"`
	Value   string `json:"value"`
	By      int64  `json:"by"`
	If      string `json:"if"`
	Version uint64 `json:"version"`
	// Commands of an operation on a group of keys.
	Commands [][]string `json:"commands"`
}

// Output is what was answered. An unknown outcome is a nil *Output.
type Output struct {
	Value   *string         `json:"value"`
	Number  *int64          `json:"number"`
	Applied *bool           `json:"applied"`
	Before  json.RawMessage `json:"before"`
	Version uint64          `json:"version"`
	Replies []interface{}   `json:"replies"`
}

func (out *Output) applied() bool {
	return out.Applied == nil || *out.Applied
}

type line struct {
	Input
	Client int     `json:"client"`
	Call   int64   `json:"call"`
	Return *int64  `json:"return"`
	Out    *Output `json:"out"`
}

const (
	lineBytesMax = 4 << 20
	never        = math.MaxInt64
)

// Read takes a history apart by key.
func Read(path string) (map[string][]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	keys, err := parse(file)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	return keys, nil
}

func parse(from io.Reader) (map[string][]porcupine.Operation, error) {
	keys := map[string][]porcupine.Operation{}
	written := map[[2]string]bool{}
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, lineBytesMax)
	number := 0
	for scanner.Scan() {
		number++
		var read line
		decoder := json.NewDecoder(bytes.NewReader(scanner.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&read); err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		if err := read.check(); err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		if read.Op == "write" {
			this := [2]string{read.Key, read.Value}
			if written[this] {
				return nil, fmt.Errorf("%d: `%s` is written to `%s` a second time", number, read.Value, read.Key)
			}
			written[this] = true
		}
		if read.Out == nil && read.onlyReads() {
			continue
		}
		if earlier := keys[read.Key]; len(earlier) > 0 && earlier[0].Input.(Input).isOfGroup() != read.isOfGroup() {
			return nil, fmt.Errorf("%d: `%s` is a key, and also a group of keys", number, read.Key)
		}
		operation := porcupine.Operation{
			ClientId: read.Client,
			Input:    read.Input,
			Call:     read.Call,
			Output:   read.Out,
			Return:   never,
		}
		if read.Return != nil {
			operation.Return = *read.Return
		}
		keys[read.Key] = append(keys[read.Key], operation)
	}
	return keys, scanner.Err()
}

func (in Input) isOfGroup() bool {
	return in.Op == "commands"
}

// onlyReads: it changes nothing.
func (in Input) onlyReads() bool {
	for _, command := range in.Commands {
		switch command[0] {
		case "GET", "LRANGE", "HGETALL", "SMEMBERS", "ZRANGE", "XLEN", "XRANGE", "XPENDING":
		default:
			return false
		}
	}
	return in.Op == "read" || in.isOfGroup()
}

func (read *line) check() error {
	switch read.Op {
	case "read", "write", "remove", "increment":
	case "commands":
		for _, command := range read.Commands {
			if err := checkCommand(command); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("no such operation: `%s`", read.Op)
	}
	switch read.If {
	case "", "absent", "present", "version":
	default:
		return fmt.Errorf("no such condition: `%s`", read.If)
	}
	if (read.Return == nil) != (read.Out == nil) {
		return errors.New("return and out belong together")
	}
	if read.Return != nil && *read.Return < read.Call {
		return errors.New("it returns before it is called")
	}
	if read.Op == "increment" && read.Out != nil && read.Out.Number == nil {
		return errors.New("an increment answers a number")
	}
	return nil
}
