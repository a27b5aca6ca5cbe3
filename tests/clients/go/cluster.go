package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The workload of a cluster, as clients/README.md describes it.

const (
	workers  = 4
	keysEach = 50
	sayEvery = 100 * time.Millisecond
	rest     = 10 * time.Millisecond
)

// Of a key: the last value that was acknowledged, and those whose fate is unknown.
type history struct {
	last    string
	unknown map[string]bool
}

type worker struct {
	client       *redis.ClusterClient
	number       int
	acknowledged int
	passes       int
	failed       int
	errors       map[string]int
	wrong        []string
	gap          time.Duration
	keys         []string
	known        map[string]*history
}

func newWorker(client *redis.ClusterClient, number int) *worker {
	w := &worker{client: client, number: number, errors: map[string]int{}, known: map[string]*history{}}
	for i := 0; i < keysEach; i++ {
		key := fmt.Sprintf("worker%d:%d", number, i)
		w.keys = append(w.keys, key)
		w.known[key] = &history{unknown: map[string]bool{}}
	}
	return w
}

func (w *worker) run(stop *atomic.Bool) {
	sequence := 0
	var said time.Time
	succeeded := time.Now()
	for !stop.Load() {
		for _, key := range w.keys {
			sequence++
			if w.write(key, strconv.Itoa(sequence)) {
				if gap := time.Since(succeeded); gap > w.gap {
					w.gap = gap
				}
				succeeded = time.Now()
			}
		}
		w.passes++
		if time.Since(said) > sayEvery {
			said = time.Now()
			fmt.Println("pass", w.number, w.passes, w.failed)
		}
	}
}

func (w *worker) count(err error) bool {
	text := fmt.Sprintf("%T %v", err, err)
	if len(text) > 80 {
		text = text[:80]
	}
	if w.errors[text] == 0 {
		fmt.Fprintf(os.Stderr, "%s worker %d: %s\n", time.Now().Format("15:04:05.000"), w.number, text)
	}
	w.errors[text]++
	w.failed++
	time.Sleep(rest)
	return false
}

func (w *worker) write(key, value string) bool {
	known := w.known[key]
	if err := w.client.Set(ctx, key, value, 0).Err(); err != nil {
		known.unknown[value] = true
		return w.count(err)
	}
	known.last = value
	w.acknowledged++
	return w.read(key)
}

func (w *worker) read(key string) bool {
	found, err := w.client.Get(ctx, key).Result()
	if err != nil && err != redis.Nil {
		return w.count(err)
	}
	known := w.known[key]
	if found != known.last && !known.unknown[found] {
		w.wrong = append(w.wrong, fmt.Sprintf("%s: found %q, acknowledged %q, unknown %v", key, found, known.last, known.unknown))
	}
	return true
}

func (w *worker) check() {
	for _, key := range w.keys {
		for w.known[key].last != "" && !w.read(key) {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func clusterMain(nodes string, resp int) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(nodes, ","), Protocol: resp})
	defer client.Close()
	var stop atomic.Bool
	var group sync.WaitGroup
	all := make([]*worker, workers)
	for i := range all {
		all[i] = newWorker(client, i)
		group.Add(1)
		go func(w *worker) {
			defer group.Done()
			w.run(&stop)
		}(all[i])
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stop.Store(true)
	group.Wait()
	result := struct {
		Acknowledged int            `json:"acknowledged"`
		Errors       map[string]int `json:"errors"`
		Wrong        []string       `json:"wrong"`
		GapMs        int64          `json:"gap_ms"`
	}{Errors: map[string]int{}, Wrong: []string{}}
	for _, w := range all {
		w.check()
		result.Acknowledged += w.acknowledged
		for text, count := range w.errors {
			result.Errors[text] += count
		}
		result.Wrong = append(result.Wrong, w.wrong...)
		result.GapMs = max64(result.GapMs, w.gap.Milliseconds())
	}
	text, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	fmt.Println("result", string(text))
}

func max64(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}
