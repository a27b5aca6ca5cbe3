package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// asked is an operation: commands divided by `;`, with their replies as a list.
func asked(commands string, call, end int, replies string) string {
	return sent(commands, call) + fmt.Sprintf(`,"return":%d,"out":{"replies":%s}`, end, replies)
}

// sent is an operation of unknown outcome.
func sent(commands string, call int) string {
	var all [][]string
	for _, command := range strings.Split(commands, ";") {
		all = append(all, strings.Fields(command))
	}
	text, _ := json.Marshal(all)
	return fmt.Sprintf(`"op":"commands","commands":%s,"call":%d`, text, call)
}

func groupVerdict(t *testing.T, lines ...string) porcupine.CheckResult {
	t.Helper()
	text := ""
	for _, line := range lines {
		text += `{"client":0,"key":"g",` + line + "}\n"
	}
	keys, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return porcupine.CheckOperationsTimeout(*modelOf(keys["g"]), keys["g"], patience)
}

// Each history of legal ones, and what makes it illegal: another last line.
func TestVerdictsOfGroups(t *testing.T) {
	cases := []struct {
		name      string
		lines     []string
		good, bad string
	}{
		{"a lost push", []string{asked("RPUSH l a", 0, 1, `[1]`), asked("RPUSH l b", 2, 3, `[2]`)},
			asked("LRANGE l 0 -1", 4, 5, `[["a","b"]]`), asked("LRANGE l 0 -1", 4, 5, `[["a"]]`)},
		{"a push that is done twice", []string{sent("LPUSH l a", 0)},
			asked("LRANGE l 0 -1", 4, 5, `[["a"]]`), asked("LRANGE l 0 -1", 4, 5, `[["a","a"]]`)},
		{"two take the same element", []string{asked("RPUSH l a", 0, 1, `[1]`), asked("BLPOP l 1", 2, 9, `[["l","a"]]`)},
			asked("LPOP l", 3, 8, `[null]`), asked("LPOP l", 3, 8, `["a"]`)},
		{"a pop of unknown outcome", []string{asked("RPUSH l a", 0, 1, `[1]`), sent("BLPOP l 1", 2)},
			asked("LPOP l", 3, 8, `[null]`), asked("LPOP l", 3, 8, `["b"]`)},
		{"a waiting client that is not woken", []string{asked("RPUSH l a", 0, 1, `[1]`)},
			asked("BLPOP l 1", 2, 9, `[["l","a"]]`), asked("BLPOP l 1", 2, 9, `[null]`)},
		{"an element that is moved and stays", []string{asked("RPUSH l a", 0, 1, `[1]`), asked("LMOVE l m LEFT RIGHT", 2, 3, `["a"]`)},
			asked("LRANGE l 0 -1;LRANGE m 0 -1", 4, 5, `[[],["a"]]`), asked("LRANGE l 0 -1;LRANGE m 0 -1", 4, 5, `[["a"],["a"]]`)},
		{"an element that is between two lists", []string{asked("RPUSH l a", 0, 1, `[1]`), sent("BLMOVE l m LEFT RIGHT 1", 2)},
			asked("LRANGE l 0 -1;LRANGE m 0 -1", 4, 5, `[["a"],[]]`), asked("LRANGE l 0 -1;LRANGE m 0 -1", 4, 5, `[[],[]]`)},
		{"half of a transaction", []string{sent("SET w a;RPUSH l a", 0)},
			asked("GET w;LRANGE l 0 -1", 4, 5, `["a",["a"]]`), asked("GET w;LRANGE l 0 -1", 4, 5, `["a",[]]`)},
		{"a transaction that is seen in parts", []string{asked("HSET h f a;SADD s a", 0, 9, `[1,1]`), asked("HGETALL h", 1, 2, `[["f","a"]]`)},
			asked("SMEMBERS s", 3, 4, `[["a"]]`), asked("SMEMBERS s", 3, 4, `[[]]`)},
		{"a field that is lost", []string{asked("HSET h f a", 0, 1, `[1]`), asked("HSET h e b", 2, 3, `[1]`), asked("HDEL h f", 4, 5, `[1]`)},
			asked("HGETALL h", 6, 7, `[["e","b"]]`), asked("HGETALL h", 6, 7, `[[]]`)},
		{"an increment that is lost", []string{asked("HINCRBY h n 2", 0, 1, `[2]`)},
			asked("HINCRBY h n 1", 2, 3, `[3]`), asked("HINCRBY h n 1", 2, 3, `[1]`)},
		{"fields in another order", []string{asked("HSET h a 1", 0, 1, `[1]`), asked("HSET h b 2", 2, 3, `[1]`)},
			asked("HGETALL h", 4, 5, `[["b","2","a","1"]]`), asked("HGETALL h", 4, 5, `[["b","1","a","2"]]`)},
		{"a member twice", []string{asked("SADD s a", 0, 1, `[1]`)},
			asked("SADD s a", 2, 3, `[0]`), asked("SADD s a", 2, 3, `[1]`)},
		{"a member that comes back", []string{asked("SADD s a", 0, 1, `[1]`), asked("SADD s b", 0, 1, `[1]`), asked("SREM s a", 2, 3, `[1]`)},
			asked("SMEMBERS s", 4, 5, `[["b"]]`), asked("SMEMBERS s", 4, 5, `[["b","a"]]`)},
		{"a stale score", []string{asked("ZADD z 5 a", 0, 1, `[1]`), asked("ZADD z 4 b", 2, 3, `[1]`), asked("ZINCRBY z 3 b", 4, 5, `["7"]`)},
			asked("ZRANGE z 0 -1 WITHSCORES", 6, 7, `[["a","5","b","7"]]`), asked("ZRANGE z 0 -1 WITHSCORES", 6, 7, `[["b","4","a","5"]]`)},
		{"not the least", []string{asked("ZADD z 5 a", 0, 1, `[1]`), asked("ZADD z 4 b", 2, 3, `[1]`)},
			asked("BZPOPMIN z 1", 4, 5, `[["z","b","4"]]`), asked("BZPOPMIN z 1", 4, 5, `[["z","a","5"]]`)},
		{"the least, twice", []string{asked("ZADD z 5 a", 0, 1, `[1]`), asked("ZPOPMIN z", 2, 3, `[["a","5"]]`)},
			asked("ZPOPMIN z", 4, 5, `[[]]`), asked("ZPOPMIN z", 4, 5, `[["a","5"]]`)},
	}
	for _, one := range cases {
		t.Run(one.name, func(t *testing.T) {
			judge(t, append(one.lines, one.good), porcupine.Ok)
			judge(t, append(one.lines, one.bad), porcupine.Illegal)
		})
	}
}

func judge(t *testing.T, lines []string, want porcupine.CheckResult) {
	t.Helper()
	if found := groupVerdict(t, lines...); found != want {
		t.Fatalf("%s, and not %s: %s", found, want, lines[len(lines)-1])
	}
}

func TestVerdictsOfScripts(t *testing.T) {
	first := `"op":"commands","commands":[["CHANGE","h","l","","a"]],"call":0,"return":1,"out":{"replies":[1]}`
	all := "HGETALL h;LRANGE l 0 -1"
	both := asked(all, 6, 7, `[["state","b"],["a","b"]]`)
	judge(t, []string{first, asked("CHANGE h l a b", 2, 3, `[1]`), both}, porcupine.Ok)
	judge(t, []string{first, sent("CHANGE h l a b", 2), both}, porcupine.Ok)
	judge(t, []string{first, asked("CHANGE h l x b", 2, 3, `["a"]`), both}, porcupine.Illegal)
	judge(t, []string{first, asked("CHANGE h l x b", 2, 3, `[1]`)}, porcupine.Illegal)
	half := asked(all, 6, 7, `[["state","b"],["a"]]`)
	judge(t, []string{first, sent("CHANGE h l a b", 2), half}, porcupine.Illegal)
	// Both saw the same state.
	judge(t, []string{first, asked("CHANGE h l a b", 2, 9, `[1]`), asked("CHANGE h l a c", 2, 9, `[1]`)}, porcupine.Illegal)
	pushed := asked("RPUSH l a", 0, 1, `[1]`)
	all = "LRANGE l 0 -1;ZRANGE z 0 -1 WITHSCORES"
	judge(t, []string{pushed, sent("CARRY l z 3", 2), asked(all, 3, 4, `[[],["a","3"]]`)}, porcupine.Ok)
	judge(t, []string{pushed, sent("CARRY l z 3", 2), asked(all, 3, 4, `[["a"],[]]`)}, porcupine.Ok)
	judge(t, []string{pushed, sent("CARRY l z 3", 2), asked(all, 3, 4, `[["a"],["a","3"]]`)}, porcupine.Illegal)
	judge(t, []string{pushed, sent("CARRY l z 3", 2), asked(all, 3, 4, `[[],[]]`)}, porcupine.Illegal)
}

func TestVerdictsOfStreams(t *testing.T) {
	begin := []string{
		asked("XREADGROUP GROUP g c1 COUNT 1 STREAMS x >", 0, 1, `[{"error":"NOGROUP"}]`),
		asked("XGROUP CREATE x g 0 MKSTREAM", 2, 3, `["OK"]`),
		asked("XADD x 1-* f a", 4, 5, `["1-0"]`),
		asked("XADD x 1-* f b", 6, 7, `["1-1"]`),
	}
	next := func(consumer, reply string, call int) string {
		return asked("XREADGROUP GROUP g "+consumer+" COUNT 1 STREAMS x >", call, call+1, reply)
	}
	first, second := `[[["x",[["1-0",["f","a"]]]]]]`, `[[["x",[["1-1",["f","b"]]]]]]`
	is := func(want porcupine.CheckResult, lines ...string) {
		t.Helper()
		judge(t, append(append([]string{}, begin...), lines...), want)
	}
	is(porcupine.Ok, next("c1", first, 10), next("c2", second, 12), next("c2", `[null]`, 14))
	is(porcupine.Illegal, next("c1", first, 10), next("c2", first, 12))
	is(porcupine.Illegal, next("c1", first, 10), next("c2", `[null]`, 12))
	waits := asked("XPENDING x g", 20, 21, `[[1,"1-1","1-1",[["c2","1"]]]]`)
	is(porcupine.Ok, next("c1", first, 10), next("c2", second, 12), asked("XACK x g 1-0", 14, 15, `[1]`), waits)
	is(porcupine.Illegal, next("c1", first, 10), next("c2", second, 12), asked("XACK x g 1-1", 14, 15, `[1]`), waits)
	is(porcupine.Illegal, asked("XACK x g 1-0", 10, 11, `[1]`))
	is(porcupine.Illegal, asked("XGROUP CREATE x g 0 MKSTREAM", 10, 11, `["OK"]`))
	is(porcupine.Illegal, asked("XADD x 1-* f c", 10, 11, `["1-1"]`))
	is(porcupine.Illegal, asked("XRANGE x - +", 10, 11, `[[["1-1",["f","b"]]]]`))
	is(porcupine.Ok, asked("XDEL x 1-0", 8, 9, `[1]`), asked("XRANGE x - +", 10, 11, `[[["1-1",["f","b"]]]]`), next("c1", second, 12))
	is(porcupine.Ok, asked("XTRIM x MAXLEN 0", 8, 9, `[2]`), asked("XLEN x", 10, 11, `[0]`), asked("XADD x 1-* f c", 12, 13, `["1-2"]`))
	is(porcupine.Illegal, asked("XTRIM x MAXLEN 0", 8, 9, `[2]`), asked("XADD x 1-* f c", 12, 13, `["1-0"]`))
}

func TestRefusalsOfGroups(t *testing.T) {
	begin := asked("SET w a", 0, 1, `["OK"]`)
	judge(t, []string{begin, asked("RPUSH w b", 2, 3, `[{"error":"WRONGTYPE"}]`)}, porcupine.Ok)
	judge(t, []string{begin, asked("RPUSH w b", 2, 3, `[1]`)}, porcupine.Illegal)
	judge(t, []string{begin, asked("DEL w", 2, 3, `[{"error":"ERR"}]`)}, porcupine.Illegal)
	judge(t, []string{begin, asked("RENAME w v;GET v;GET w", 2, 3, `["OK","a",null]`)}, porcupine.Ok)
	judge(t, []string{asked("RENAME w v", 2, 3, `["OK"]`)}, porcupine.Illegal)
	for _, text := range []string{
		sent("FLUSHALL", 0), sent("GET", 0), sent("LPUSH l a b", 0),
		sent("DEL w", 0) + `,"key":"k"}` + "\n" + `{"client":0,"key":"k",` + write("a", 0, 1),
	} {
		if _, err := parse(strings.NewReader(`{"client":0,"key":"k",` + text + "}\n")); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}

// A queue that clients fill and drain at the same time is legal; and an element that is taken twice, or never was there, is found.
func TestLiesInLongHistoriesOfGroups(t *testing.T) {
	for seed := int64(0); seed < 12; seed++ {
		dice := rand.New(rand.NewSource(seed))
		honest, pops := simulateQueue(dice, 200)
		if found := porcupine.CheckOperationsTimeout(groups, honest, patience); found != porcupine.Ok {
			t.Fatalf("seed %d: %s", seed, found)
		}
		one, other := pops[len(pops)/2], pops[len(pops)/2+1+dice.Intn(len(pops)/2-1)]
		honest[other].Output = honest[one].Output
		if found := porcupine.CheckOperationsTimeout(groups, honest, patience); found != porcupine.Illegal {
			t.Fatalf("seed %d: the lie is %s", seed, found)
		}
	}
}

// simulateQueue makes the history of eight clients that push to a list and pop from it, and the places of the pops that found an
// element. At most three operations never end.
func simulateQueue(dice *rand.Rand, count int) (history []porcupine.Operation, pops []int) {
	free := make([]int64, 8)
	now, unknown := int64(0), 0
	state := Group{}
	for len(history) < count {
		client := dice.Intn(len(free))
		now += 1 + dice.Int63n(10)
		commands := [][]string{{"BLPOP", "l", "1"}}
		if dice.Intn(2) == 0 {
			commands = [][]string{{"RPUSH", "l", fmt.Sprint("e", len(history))}, {"HINCRBY", "h", "n", "1"}}
		}
		replies, after := state.run(commands)
		operation := porcupine.Operation{
			ClientId: client,
			Input:    Input{Op: "commands", Commands: commands},
			Call:     now - dice.Int63n(now-min64(free[client], now-1)),
			Output:   &Output{Replies: replies},
			Return:   now + dice.Int63n(40),
		}
		free[client] = operation.Return
		switch {
		case dice.Intn(30) == 0 && unknown < 3:
			unknown++
			operation.Output, operation.Return = (*Output)(nil), never
			if dice.Intn(2) == 0 {
				state = after
			}
		default:
			state = after
			if commands[0][0] == "BLPOP" && replies[0] != nil {
				pops = append(pops, len(history))
			}
		}
		history = append(history, operation)
	}
	return history, pops
}
