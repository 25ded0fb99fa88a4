// Reading of a history: lines of JSON, which the Python side has written (histories/recording.py).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
)

// Version is what a conditional write compares. In a write, a fence of 0 is left to the store.
type Version struct {
	Owner string `json:"owner"`
	Fence int64  `json:"fence"`
	Beat  int64  `json:"beat"`
}

// Record is a record as a client wrote it, or as the store showed it.
type Record struct {
	Version
	Status string  `json:"status"`
	Result *string `json:"result"`
	Lease  float64 `json:"lease"` // seconds, of a write
	Data   string  `json:"data"`  // a digest of what the client chose
	Whole  string  `json:"whole"` // a digest of all fields, also of those that the store stamps; empty in a write
}

// Line is one event: an operation begins, an operation ends, or both at once.
type Line struct {
	What   string   `json:"what"`
	Op     string   `json:"op"`
	Key    string   `json:"key"`
	Pid    int      `json:"pid"`
	At     int64    `json:"t"`     // nanoseconds, of the machine's monotonic clock
	Began  int64    `json:"began"` // of a whole operation
	Kind   string   `json:"kind"`  // insert, swap, load; told, believed, effect
	Write  *Record  `json:"write"`
	Seen   *Version `json:"seen"`
	Won    bool     `json:"won"`
	Record *Record  `json:"record"`
	Value  string   `json:"value"`
	Fence  int64    `json:"fence"`
}

// Op is one operation on one key.
type Op struct {
	Line
	Call, Return int64
	Known        bool // whether it has returned
}

const never = math.MaxInt64

// read returns the operations of the files, by key.
func read(paths []string) (map[string][]*Op, error) {
	open := map[string]*Op{}
	keys := map[string][]*Op{}
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			var line Line
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				return nil, fmt.Errorf("%s: %w: %s", path, err, lines.Text())
			}
			switch line.What {
			case "invoke":
				op := &Op{Line: line, Call: line.At, Return: never}
				open[line.Op] = op
				keys[line.Key] = append(keys[line.Key], op)
			case "return":
				op := open[line.Op]
				if op == nil {
					return nil, fmt.Errorf("%s: %s returns and was not invoked", path, line.Op)
				}
				op.Return, op.Known, op.Won, op.Record = line.At, true, line.Won, line.Record
			case "whole":
				keys[line.Key] = append(keys[line.Key], &Op{Line: line, Call: line.Began, Return: line.At, Known: true})
			}
		}
		file.Close()
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

type mark struct {
	owner string
	beat  int64
}

// content is a version with what it says: the owner's renewal and its completion, sent at a time, would make the same version.
type content struct {
	mark
	data string
}

func (r Record) content() content { return content{r.mark(), r.Data} }

func (v Version) mark() mark { return mark{v.Owner, v.Beat} }

// bounded returns the operations with a return for each that can have one, in the order of their calls.
//
// An operation without an answer may take effect at any time after its call, or never. A history with many of them takes too long to
// judge. But no two writes make the same version, except for the repetitions of one write. So:
//   - If another operation won with the same version, this one had no effect.
//   - If somebody met its version, it took effect before that answer. All of its repetitions are one operation.
//   - If nobody met its version, no later operation depends on it. It is left out.
func bounded(ops []*Op, repeats bool) []*Op {
	won := map[mark]bool{}
	met := map[content]int64{} // the first answer that shows it
	known := map[mark]bool{}   // versions that somebody met
	asked := map[mark]bool{}
	for _, op := range ops {
		if op.Seen != nil {
			asked[op.Seen.mark()] = true
		}
		if !op.Known {
			continue
		}
		if op.Record != nil {
			known[op.Record.mark()] = true
			if first, found := met[op.Record.content()]; !found || op.Return < first {
				met[op.Record.content()] = op.Return
			}
		}
		if op.Won {
			won[op.Write.mark()] = true
		}
	}
	kept, merged := []*Op{}, map[content]*Op{}
	for _, op := range ops {
		if op.Known {
			kept = append(kept, op)
		}
		if op.Write == nil || op.Won {
			continue // a read, or a write that is there once
		}
		// A claim can be made, and lost before its store has given it its fence: then its answer shows another's record. So can any write
		// of a client that sends it again by itself.
		if op.Known && (!(repeats || isClaim(op)) || op.Record == nil || op.Record.mark() == op.Write.mark() || !known[op.Write.mark()]) {
			continue
		}
		version := op.Write.content()
		at, found := met[version]
		if won[version.mark] || (!found && (known[version.mark] || !asked[version.mark])) {
			continue
		}
		if first := merged[version]; first != nil {
			first.Call = min(first.Call, op.Call)
			continue
		}
		one := *op
		one.Return, one.Known, one.Record = never, false, nil
		if found {
			one.Return = max(at, op.Call)
		}
		merged[version] = &one
		kept = append(kept, &one)
	}
	sort.SliceStable(kept, func(i, j int) bool { return kept[i].Call < kept[j].Call })
	return kept
}
