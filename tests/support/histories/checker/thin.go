// Leaves out what follows from the rest, without which a history with hundreds of reads at a time takes for ever.
//
// No version of a record comes twice, so a record is there for one stretch of time. Each operation that was shown it overlaps that stretch.
// That is so if it holds for two of them: the one that returned first, and the one that was called last.
package main

import "fmt"

// group returns what a read was shown, or "" for an operation that is to be judged by itself.
func group(op *Op) string {
	switch op.Kind {
	case "told":
		return "told " + op.Value
	case "believed":
		return fmt.Sprint("believed ", op.Fence)
	}
	if op.Won || !op.Known || (op.Write != nil && op.Record != nil && op.Record.mark() == op.Write.mark()) {
		return ""
	}
	if op.Record == nil {
		if op.Kind == "insert" {
			return ""
		}
		return "none"
	}
	if op.Seen != nil && *op.Seen == op.Record.Version {
		return ""
	}
	record := op.Record
	return fmt.Sprint(record.Version, record.Data, record.Whole)
}

func thinned(ops []*Op) []*Op {
	first, last := map[string]*Op{}, map[string]*Op{}
	for _, op := range ops {
		name := group(op)
		if one := first[name]; one == nil || op.Return < one.Return {
			first[name] = op
		}
		if one := last[name]; one == nil || op.Call > one.Call {
			last[name] = op
		}
	}
	kept := []*Op{}
	for _, op := range ops {
		name := group(op)
		if op.Kind == "effect" {
			continue // counted by twice()
		}
		if name == "" || name == "none" || first[name] == op || last[name] == op {
			kept = append(kept, op)
		}
	}
	return kept
}

// ofStore returns the operations of the register.
func ofStore(ops []*Op) []*Op {
	kept := []*Op{}
	for _, op := range ops {
		if op.Kind == "load" || op.Kind == "insert" || op.Kind == "swap" {
			kept = append(kept, op)
		}
	}
	return kept
}
