// The two models. The register is what a store promises: insert if absent, swap if the version is the one seen, load. The protocol adds
// what onceward promises on top of it: leases, fences, completed records that stay, and callers that are told what is recorded.
package main

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// state is the record of one key.
type state struct {
	present bool
	owner   string
	beat    int64
	// A store may give a claim a larger fence before it answers (stores/sql/fences.py). Until somebody sees it, it is in this range.
	low, high int64
	data      string
	whole     string // empty until somebody has seen it
	status    string
	result    string
	lapse     int64 // the lease ends no earlier, in nanoseconds
}

type judge struct {
	protocol bool
	slack    int64 // nanoseconds by which a lease may end early: the resolution of the store's clock
}

func (j judge) model() porcupine.Model {
	return porcupine.Model{
		Init:              func() interface{} { return state{} },
		Step:              func(held, input, _ interface{}) (bool, interface{}) { return j.step(held.(state), input.(*Op)) },
		DescribeOperation: func(input, _ interface{}) string { return describe(input.(*Op)) },
		DescribeState:     func(held interface{}) string { return fmt.Sprintf("%+v", held) },
	}
}

// step returns whether an operation can take effect in a state, and the state after it.
func (j judge) step(held state, op *Op) (bool, state) {
	switch op.Kind {
	case "load":
		return show(held, op.Record)
	case "insert", "swap":
		return j.write(held, op)
	}
	if !j.protocol {
		return true, held
	}
	switch op.Kind {
	case "told": // the caller has a result: it is recorded, or the completion is recorded without one
		return held.status == "COMPLETED" && (held.result == "" || strings.Contains(held.result, op.Value)), held
	case "believed": // a worker believed in its claim: nobody else has the key
		return held.present && held.low <= op.Fence && op.Fence <= held.high, held
	}
	return true, held
}

func (j judge) write(held state, op *Op) (bool, state) {
	applies := !held.present
	if op.Kind == "swap" {
		applies = held.is(*op.Seen)
	}
	if !op.Known {
		if !applies {
			return true, held
		}
		return j.allows(held, op), made(held, op)
	}
	if op.Won {
		if !applies || !j.allows(held, op) {
			return false, held
		}
		return made(held, op).answers(op)
	}
	if op.Record != nil && op.Record.mark() == op.Write.mark() { // its client or its store has repeated the request
		if applies {
			if !j.allows(held, op) {
				return false, held
			}
			return made(held, op).answers(op)
		}
		if isClaim(op) && held.present && held.low <= op.Record.Fence { // which may give it a larger fence once more
			held.high = max(held.high, op.Record.Fence)
		}
		return held.answers(op)
	}
	if applies && (op.Seen == nil || op.Record == nil || op.Record.Fence <= op.Seen.Fence) {
		return false, held
	} // else its store had given the claim a larger fence by then
	return show(held, op.Record)
}

// show returns whether a store in this state can show a record, or none.
func show(held state, shown *Record) (bool, state) {
	if shown == nil {
		return !held.present, held
	}
	if !held.present || held.owner != shown.Owner || held.beat != shown.Beat || held.data != shown.Data {
		return false, held
	}
	if shown.Fence < held.low || held.high < shown.Fence {
		return false, held
	}
	if held.whole != "" && held.whole != shown.Whole && shown.Fence == held.low {
		return false, held
	}
	held.low, held.whole = shown.Fence, shown.Whole
	return true, held
}

// answers is show, for the answer to a write. The claim's fence was possibly another one before.
func (held state) answers(op *Op) (bool, state) {
	ok, after := show(held, op.Record)
	if isClaim(op) {
		after.low, after.whole = held.low, ""
	}
	return ok, after
}

func isClaim(op *Op) bool { return op.Kind == "insert" || op.Write.Fence != op.Seen.Fence }

func (held state) is(seen Version) bool {
	return held.present && held.owner == seen.Owner && held.beat == seen.Beat && held.low <= seen.Fence && seen.Fence <= held.high
}

// made returns the state that a write makes.
func made(held state, op *Op) state {
	wrote := op.Write
	after := state{
		present: true, owner: wrote.Owner, beat: wrote.Beat, data: wrote.Data, status: wrote.Status,
		low: wrote.Fence, high: wrote.Fence, lapse: op.Call + int64(wrote.Lease*1e9),
	}
	if wrote.Result != nil {
		after.result = *wrote.Result
	}
	if isClaim(op) {
		after.high = never
		if op.Known && op.Record != nil {
			after.high = op.Record.Fence
		}
	} else if wrote.Status == "IN_PROGRESS" { // a renewal shortens no lease
		after.lapse = max(after.lapse, held.lapse)
	}
	return after
}

// allows returns whether the protocol allows a write in a state.
func (j judge) allows(held state, op *Op) bool {
	if !j.protocol || !held.present {
		return true
	}
	if held.status == "COMPLETED" || held.status == "PARKED" {
		return false
	}
	if held.owner == op.Write.Owner && held.low <= op.Write.Fence && op.Write.Fence <= held.high { // the owner's next write
		return held.status == "IN_PROGRESS"
	}
	shown := op.Write.Fence
	if op.Record != nil {
		shown = op.Record.Fence
	}
	if shown <= held.low {
		return false
	}
	return held.status == "RELEASED" || op.Return >= held.lapse-j.slack
}

// twice returns the operations that make a second effect under one claim.
func twice(ops []*Op) []*Op {
	first, again := map[int64]bool{}, []*Op{}
	for _, op := range ops {
		if op.Kind == "effect" {
			if first[op.Fence] {
				again = append(again, op)
			}
			first[op.Fence] = true
		}
	}
	return again
}
