// checker says whether histories (history.go) are linearizable, key by key, with Porcupine.
//
//	checker [-limit DURATION] [-show FOLDER] FILE...
//
// prints one line per history that is not fine, and last
//
//	checked histories=N operations=N unknown=N illegal=N undecided=N
//
// It ends with 0 if all are legal, 1 if one is illegal, 2 if one could not be decided within the limit, 3 if one can't be read.
// For each illegal key it says how far the history can be explained, and leaves a page with a picture in FOLDER.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

func main() {
	limit := flag.Duration("limit", time.Minute, "most time for one key")
	show := flag.String("show", "", "folder for pictures of illegal keys")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "checker: name the files with histories")
		os.Exit(3)
	}
	os.Exit(run(flag.Args(), *limit, *show, os.Stdout))
}

// Totals of all histories.
type Totals struct {
	histories, operations, unknown, illegal, undecided, broken int
}

func (totals Totals) code() int {
	switch {
	case totals.broken > 0:
		return 3
	case totals.illegal > 0:
		return 1
	case totals.undecided > 0:
		return 2
	default:
		return 0
	}
}

func run(paths []string, limit time.Duration, show string, out io.Writer) int {
	var totals Totals
	for _, path := range paths {
		keys, err := Read(path)
		if err != nil {
			fmt.Fprintln(out, "broken", err)
			totals.broken++
			continue
		}
		totals.histories++
		verdicts := Check(keys, limit)
		illegal, undecided := false, false
		for _, key := range sorted(keys) {
			operations := keys[key]
			totals.operations += len(operations)
			for _, operation := range operations {
				if operation.Return == never {
					totals.unknown++
				}
			}
			switch verdicts[key] {
			case porcupine.Illegal:
				illegal = true
				fmt.Fprintf(out, "illegal %s key %s (%d operations)\n", path, key, len(operations))
				explain(out, operations, limit, picture(show, path, key))
			case porcupine.Unknown:
				undecided = true
				fmt.Fprintf(out, "undecided %s key %s (%d operations) after %v\n", path, key, len(operations), limit)
			}
		}
		if illegal {
			totals.illegal++
		} else if undecided {
			totals.undecided++
		}
	}
	fmt.Fprintf(out, "checked histories=%d operations=%d unknown=%d illegal=%d undecided=%d\n",
		totals.histories, totals.operations, totals.unknown, totals.illegal, totals.undecided)
	return totals.code()
}

// Check gives a verdict on each key; as many at a time as there are processors.
func Check(keys map[string][]porcupine.Operation, limit time.Duration) map[string]porcupine.CheckResult {
	verdicts := map[string]porcupine.CheckResult{}
	var guard sync.Mutex
	var all sync.WaitGroup
	work := make(chan string)
	for i := 0; i < runtime.GOMAXPROCS(0); i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for key := range work {
				verdict := porcupine.CheckOperationsTimeout(*modelOf(keys[key]), keys[key], limit)
				guard.Lock()
				verdicts[key] = verdict
				guard.Unlock()
			}
		}()
	}
	for key := range keys {
		work <- key
	}
	close(work)
	all.Wait()
	return verdicts
}

// modelOf gives the model of a key, or of a group of keys.
func modelOf(operations []porcupine.Operation) *porcupine.Model {
	if operations[0].Input.(Input).isOfGroup() {
		return &groups
	}
	return &model
}

func sorted(keys map[string][]porcupine.Operation) []string {
	var names []string
	for name := range keys {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// picture names the file for the picture of a key; empty: none is wanted.
func picture(folder, path, key string) string {
	if folder == "" {
		return ""
	}
	name := strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, key)
	return filepath.Join(folder, strings.TrimSuffix(filepath.Base(path), ".jsonl")+"-"+name+".html")
}

// How much of an explanation is printed.
const (
	tailShown  = 6
	stuckShown = 12
)

// explain prints the end of the longest linearization that there is, and what can't follow it.
func explain(out io.Writer, operations []porcupine.Operation, limit time.Duration, picture string) {
	model := modelOf(operations)
	_, info := porcupine.CheckOperationsVerbose(*model, operations, limit)
	if picture != "" {
		if err := porcupine.VisualizePath(*model, info, picture); err != nil {
			fmt.Fprintln(out, "  no picture:", err)
		} else {
			fmt.Fprintln(out, "  picture:", picture)
		}
	}
	longest := []int{}
	for _, partial := range info.PartialLinearizations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	placed := map[int]bool{}
	state := model.Init()
	for _, id := range longest {
		_, state = model.Step(state, operations[id].Input, operations[id].Output)
		placed[id] = true
	}
	fmt.Fprintf(out, "  %d operations can be put in order; the last ones:\n", len(longest))
	for _, id := range longest[max(0, len(longest)-tailShown):] {
		fmt.Fprintln(out, "   ", shown(operations[id]))
	}
	fmt.Fprintf(out, "  then the key is %s, and none of these can be next:\n", model.DescribeState(state))
	var stuck []int
	for id := range operations {
		if !placed[id] {
			stuck = append(stuck, id)
		}
	}
	sort.Slice(stuck, func(i, j int) bool { return operations[stuck[i]].Call < operations[stuck[j]].Call })
	for _, id := range stuck[:min(len(stuck), stuckShown)] {
		fmt.Fprintln(out, "   ", shown(operations[id]))
	}
}

func shown(operation porcupine.Operation) string {
	until := "never"
	if operation.Return != never {
		until = fmt.Sprintf("%.6f", float64(operation.Return)/1e9)
	}
	return fmt.Sprintf("%.6f to %s s, client %d: %s", float64(operation.Call)/1e9, until, operation.ClientId,
		modelOf([]porcupine.Operation{operation}).DescribeOperation(operation.Input, operation.Output))
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}
