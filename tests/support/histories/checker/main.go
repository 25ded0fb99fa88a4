// Judges histories: `histories [-slack SECONDS] [-repeats] [-timeout DURATION] FILE...` prints a verdict as JSON, and exits with 1 if a history is not
// linearizable, and with 2 if one could not be judged.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Finding is a history that no order of its operations explains.
type Finding struct {
	Key        string   `json:"key"`
	Model      string   `json:"model"`
	Operations []string `json:"operations"` // the last that could be explained, and those that could not
}

// Verdict is what is printed.
type Verdict struct {
	Keys       int            `json:"keys"`
	Operations int            `json:"operations"`
	Kinds      map[string]int `json:"kinds"`
	Unanswered int            `json:"unanswered"`
	Longest    int            `json:"longest"` // operations of one key
	Illegal    []Finding      `json:"illegal"`
	Undecided  []string       `json:"undecided"`
	Seconds    float64        `json:"seconds"`
}

func main() {
	slack := flag.Float64("slack", 0, "seconds by which the store's clock may end a lease early")
	repeats := flag.Bool("repeats", false, "the client sends a request again when its reply was lost")
	patience := flag.Duration("timeout", time.Minute, "for one key")
	flag.Parse()
	began := time.Now()
	keys, err := read(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	verdict := Verdict{Keys: len(keys), Kinds: map[string]int{}, Illegal: []Finding{}, Undecided: []string{}}
	names := []string{}
	for key, ops := range keys {
		names = append(names, key)
		verdict.Operations += len(ops)
		verdict.Longest = max(verdict.Longest, len(ops))
		for _, op := range ops {
			verdict.Kinds[op.Kind]++
			if !op.Known {
				verdict.Unanswered++
			}
		}
	}
	sort.Strings(names)
	judges := map[string]judge{
		"register": {},
		"protocol": {protocol: true, slack: int64(*slack * 1e9)},
	}
	var lock sync.Mutex
	var running sync.WaitGroup
	free := make(chan bool, 2)
	for _, key := range names {
		running.Add(1)
		free <- true
		go func() {
			defer func() { <-free; running.Done() }()
			all := bounded(keys[key], *repeats)
			for _, name := range []string{"register", "protocol"} {
				ops := thinned(all)
				if name == "register" {
					ops = ofStore(ops)
				}
				result, lines := check(judges[name], ops, *patience)
				if again := twice(all); name == "protocol" && result == porcupine.Ok && len(again) > 0 {
					result, lines = porcupine.Illegal, told(ops, again)
				}
				lock.Lock()
				switch result {
				case porcupine.Illegal:
					verdict.Illegal = append(verdict.Illegal, Finding{key, name, lines})
				case porcupine.Unknown:
					verdict.Undecided = append(verdict.Undecided, key)
				}
				lock.Unlock()
				if result != porcupine.Ok {
					return
				}
			}
		}()
	}
	running.Wait()
	verdict.Seconds = time.Since(began).Seconds()
	json.NewEncoder(os.Stdout).Encode(verdict)
	if len(verdict.Illegal) > 0 {
		os.Exit(1)
	}
	if len(verdict.Undecided) > 0 {
		os.Exit(2)
	}
}

// check judges one key. If no order explains it, the lines tell where the longest explanation ends.
func check(j judge, ops []*Op, patience time.Duration) (porcupine.CheckResult, []string) {
	history := []porcupine.Operation{}
	numbers := map[*Op]bool{}
	for _, op := range ops {
		history = append(history, porcupine.Operation{ClientId: 0, Input: op, Call: op.Call, Return: op.Return})
		numbers[op] = true
	}
	result, info := porcupine.CheckOperationsVerbose(j.model(), history, patience)
	if result != porcupine.Illegal {
		return result, nil
	}
	longest := []porcupine.Operation{}
	for _, part := range info.PartialLinearizationsOperations() {
		for _, one := range part {
			if len(one) > len(longest) {
				longest = one
			}
		}
	}
	explained := []*Op{}
	for _, one := range longest {
		op := one.Input.(*Op)
		delete(numbers, op)
		explained = append(explained, op)
	}
	rest := []*Op{}
	for _, op := range ops {
		if numbers[op] {
			rest = append(rest, op)
		}
	}
	return result, told(explained, rest)
}
