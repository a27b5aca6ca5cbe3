package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const patience = 30 * time.Second

// verdict of a history of a single key, whose lines are given without it.
func verdict(t *testing.T, lines ...string) porcupine.CheckResult {
	t.Helper()
	text := ""
	for _, line := range lines {
		text += fmt.Sprintf(`{"client":0,"key":"k",%s}`+"\n", line)
	}
	keys, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return porcupine.CheckOperationsTimeout(model, keys["k"], patience)
}

func write(value string, call, end int) string {
	return fmt.Sprintf(`"op":"write","value":"%s","call":%d,"return":%d,"out":{}`, value, call, end)
}

func lost(value string, call int) string {
	return fmt.Sprintf(`"op":"write","value":"%s","call":%d`, value, call)
}

func read(value string, call, end int) string {
	return fmt.Sprintf(`"op":"read","call":%d,"return":%d,"out":{"value":"%s"}`, call, end, value)
}

func absent(call, end int) string {
	return fmt.Sprintf(`"op":"read","call":%d,"return":%d,"out":{"value":null}`, call, end)
}

func add(sum, call, end int) string {
	return fmt.Sprintf(`"op":"increment","by":1,"call":%d,"return":%d,"out":{"number":%d}`, call, end, sum)
}

func addLost(call int) string {
	return fmt.Sprintf(`"op":"increment","by":1,"call":%d`, call)
}

func TestVerdicts(t *testing.T) {
	legal, illegal := porcupine.Ok, porcupine.Illegal
	cases := []struct {
		name  string
		want  porcupine.CheckResult
		lines []string
	}{
		{"one after the other", legal, []string{absent(0, 1), write("a", 2, 3), read("a", 4, 5), write("b", 6, 7), read("b", 8, 9)}},
		{"a read beside a write sees either", legal, []string{write("a", 0, 9), absent(1, 2), read("a", 3, 4)}},
		{"a read goes back", illegal, []string{write("a", 0, 9), read("a", 1, 2), absent(3, 4)}},
		{"a stale read", illegal, []string{write("a", 0, 1), write("b", 2, 3), read("a", 4, 5)}},
		{"a lost write", illegal, []string{write("a", 0, 1), absent(2, 3)}},
		{"a value of nowhere", illegal, []string{write("a", 0, 1), read("x", 2, 3)}},
		{"unknown, and it took effect late", legal, []string{write("a", 0, 1), lost("b", 2), read("a", 10, 11), read("b", 20, 21)}},
		{"unknown, and it never took effect", legal, []string{write("a", 0, 1), lost("b", 2), read("a", 10, 11), read("a", 20, 21)}},
		{"unknown, and it took effect twice", illegal, []string{lost("b", 0), read("b", 1, 2), write("c", 3, 4), read("c", 5, 6), read("b", 7, 8)}},
		{"unknown, before it was asked for", illegal, []string{read("b", 0, 1), lost("b", 2)}},
		{"increments", legal, []string{add(1, 0, 1), add(3, 2, 9), add(2, 2, 9), read("3", 10, 11)}},
		{"an increment is done twice", illegal, []string{add(1, 0, 1), read("2", 2, 3)}},
		{"an increment is lost", illegal, []string{add(1, 0, 1), add(2, 2, 3), add(2, 4, 5)}},
		{"an increment of unknown outcome, done", legal, []string{add(1, 0, 1), addLost(2), add(3, 4, 5)}},
		{"an increment of unknown outcome, not done", legal, []string{add(1, 0, 1), addLost(2), add(2, 4, 5), read("2", 6, 7)}},
		{"an increment of unknown outcome, done twice", illegal, []string{add(1, 0, 1), addLost(2), add(4, 4, 5)}},
		{"removed, and there again", illegal, []string{
			write("a", 0, 1), `"op":"remove","call":2,"return":3,"out":{"applied":true}`, read("a", 4, 5)}},
		{"nothing to remove, but there was", illegal, []string{
			write("a", 0, 1), `"op":"remove","call":2,"return":3,"out":{"applied":false}`}},
		{"nothing to remove", legal, []string{`"op":"remove","call":2,"return":3,"out":{"applied":false}`, absent(4, 5)}},
		{"a removal of unknown outcome", legal, []string{write("a", 0, 1), `"op":"remove","call":2`, read("a", 3, 4), absent(5, 6)}},
		{"two are the first", illegal, []string{
			`"op":"write","if":"absent","value":"a","call":0,"return":5,"out":{"applied":true}`,
			`"op":"write","if":"absent","value":"b","call":1,"return":6,"out":{"applied":true}`}},
		{"one is the first", legal, []string{
			`"op":"write","if":"absent","value":"a","call":0,"return":5,"out":{"applied":false}`,
			`"op":"write","if":"absent","value":"b","call":1,"return":6,"out":{"applied":true}`, read("b", 7, 8)}},
		{"refused, but nothing was there", illegal, []string{`"op":"write","if":"absent","value":"a","call":0,"return":5,"out":{"applied":false}`}},
		{"what was before", legal, []string{write("a", 0, 1), `"op":"write","value":"b","call":2,"return":3,"out":{"before":"a"}`}},
		{"nothing was before", illegal, []string{write("a", 0, 1), `"op":"write","value":"b","call":2,"return":3,"out":{"before":null}`}},
		{"something else was before", illegal, []string{write("a", 0, 1), write("c", 2, 3), `"op":"write","value":"b","call":4,"return":5,"out":{"before":"a"}`}},
		{"versions grow", legal, []string{
			`"op":"write","value":"a","call":0,"return":1,"out":{"version":5}`, lost("b", 2),
			`"op":"read","call":3,"return":4,"out":{"value":"b","version":9}`,
			`"op":"remove","call":5,"return":6,"out":{"version":9}`,
			`"op":"write","value":"c","call":7,"return":8,"out":{"version":10}`}},
		{"a version again after a removal", illegal, []string{
			`"op":"write","value":"a","call":0,"return":1,"out":{"version":5}`,
			`"op":"remove","call":2,"return":3,"out":{"version":5}`,
			`"op":"write","value":"c","call":7,"return":8,"out":{"version":5}`}},
		{"another version of the same", illegal, []string{
			`"op":"write","value":"a","call":0,"return":1,"out":{"version":5}`,
			`"op":"read","call":3,"return":4,"out":{"value":"a","version":6}`}},
		{"two see the same version and write", illegal, []string{
			`"op":"write","value":"a","call":0,"return":1,"out":{"version":5}`,
			`"op":"write","if":"version","version":5,"value":"b","call":2,"return":9,"out":{"version":6}`,
			`"op":"write","if":"version","version":5,"value":"c","call":2,"return":9,"out":{"version":7}`}},
		{"one of two that see the same version writes", legal, []string{
			`"op":"write","value":"a","call":0,"return":1,"out":{"version":5}`,
			`"op":"write","if":"version","version":5,"value":"b","call":2,"return":9,"out":{"applied":false,"version":7}`,
			`"op":"write","if":"version","version":5,"value":"c","call":2,"return":9,"out":{"version":7}`}},
		{"refused, though the version was right", illegal, []string{
			`"op":"write","value":"a","call":0,"return":1,"out":{"version":5}`,
			`"op":"write","if":"version","version":5,"value":"b","call":2,"return":9,"out":{"applied":false}`}},
	}
	for _, one := range cases {
		t.Run(one.name, func(t *testing.T) {
			if found := verdict(t, one.lines...); found != one.want {
				t.Fatalf("%s, and not %s", found, one.want)
			}
		})
	}
}

// A register and a counter, made by clients that run at the same time against a real one, are legal; and each of several lies put
// into such a history is found.
func TestLiesInLongHistories(t *testing.T) {
	for seed := int64(0); seed < 12; seed++ {
		dice := rand.New(rand.NewSource(seed))
		honest := simulate(dice, 300)
		if found := porcupine.CheckOperationsTimeout(model, honest, patience); found != porcupine.Ok {
			t.Fatalf("seed %d: %s", seed, found)
		}
		lie(dice, honest)
		if found := porcupine.CheckOperationsTimeout(model, honest, patience); found != porcupine.Illegal {
			t.Fatalf("seed %d: the lie is %s", seed, found)
		}
	}
}

// simulate makes a counter's history of eight clients: one in twenty never hears what became of its increment.
func simulate(dice *rand.Rand, count int) []porcupine.Operation {
	var history []porcupine.Operation
	free := make([]int64, 8)
	now, sum := int64(0), int64(0)
	unknown := 0
	for len(history) < count {
		client := dice.Intn(len(free))
		effect := now + 1 + dice.Int63n(10)
		now = effect
		call := effect - dice.Int63n(effect-min64(free[client], effect-1))
		operation := porcupine.Operation{ClientId: client, Call: call, Return: effect + dice.Int63n(40)}
		free[client] = operation.Return
		if dice.Intn(2) == 0 {
			value := fmt.Sprint(sum)
			out := &Output{Value: &value}
			if sum == 0 {
				out.Value = nil
			}
			operation.Input, operation.Output = Input{Op: "read"}, out
		} else {
			operation.Input = Input{Op: "increment", By: 1}
			known := true
			if dice.Intn(20) == 0 && unknown < 5 {
				unknown, known = unknown+1, false
			}
			if known || dice.Intn(2) == 0 {
				sum++
			}
			number := sum
			operation.Output = &Output{Number: &number}
			if !known {
				operation.Output, operation.Return = (*Output)(nil), never
			}
		}
		history = append(history, operation)
	}
	return history
}

func min64(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

// lie makes one read say what had been true long before.
func lie(dice *rand.Rand, history []porcupine.Operation) {
	for {
		at := len(history)/2 + dice.Intn(len(history)/2)
		if history[at].Input.(Input).Op == "read" {
			value := "1"
			history[at].Output = &Output{Value: &value}
			return
		}
	}
}

func TestBrokenLines(t *testing.T) {
	for _, text := range []string{
		`{"client":0,"key":"k","op":"swap","call":0}`,
		`{"client":0,"key":"k","op":"read","if":"maybe","call":0}`,
		`{"client":0,"key":"k","op":"read","call":5,"return":4,"out":{}}`,
		`{"client":0,"key":"k","op":"read","call":5,"return":6}`,
		`{"client":0,"key":"k","op":"increment","call":5,"return":6,"out":{}}`,
		`{"client":0,"key":"k","op":"read","colour":"red","call":5}`,
		`{"client":0,"key":"k","op":"write","value":"a","call":5}` + "\n" + `{"client":0,"key":"k","op":"write","value":"a","call":6}`,
		`{`,
	} {
		if _, err := parse(strings.NewReader(text)); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}

// The program as it is called: what it prints, how it ends, and the picture.
func TestProgram(t *testing.T) {
	folder := t.TempDir()
	good, bad := filepath.Join(folder, "good.jsonl"), filepath.Join(folder, "bad.jsonl")
	line := func(key, rest string) string { return `{"client":3,"key":"` + key + `",` + rest + "}\n" }
	save := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	save(good, line("a", write("v", 0, 1))+line("b", lost("v", 0)))
	save(bad, line("a", write("v", 0, 1))+line("a", absent(2, 3))+line("b", absent(0, 1)))
	var out bytes.Buffer
	if code := run([]string{good}, patience, "", &out); code != 0 || out.String() != "checked histories=1 operations=2 unknown=1 illegal=0 undecided=0\n" {
		t.Fatalf("%d: %s", code, out.String())
	}
	out.Reset()
	code := run([]string{good, bad}, patience, folder, &out)
	if code != 1 || !strings.Contains(out.String(), "illegal "+bad+" key a") || !strings.Contains(out.String(), "histories=2 operations=5 unknown=1 illegal=1") {
		t.Fatalf("%d: %s", code, out.String())
	}
	if !strings.Contains(out.String(), "client 3: read -> absent") {
		t.Fatalf("no explanation: %s", out.String())
	}
	if _, err := os.Stat(filepath.Join(folder, "bad-a.html")); err != nil {
		t.Fatal(err)
	}
	if code := run([]string{filepath.Join(folder, "none.jsonl")}, patience, "", &out); code != 3 {
		t.Fatal(code)
	}
}

// What can't be decided in time is not called legal.
func TestUndecided(t *testing.T) {
	var lines []string
	for i := 0; i < 60; i++ {
		lines = append(lines, lost(fmt.Sprintf("v%d", i), i))
	}
	lines = append(lines, read("none of them", 100, 101))
	text := ""
	for _, line := range lines {
		text += `{"client":0,"key":"k",` + line + "}\n"
	}
	path := filepath.Join(t.TempDir(), "long.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := run([]string{path}, 200*time.Millisecond, "", &out); code != 2 {
		t.Fatalf("%d: %s", code, out.String())
	}
}
