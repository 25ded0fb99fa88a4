// Histories in words, for people.
package main

import "fmt"

const shown = 12 // lines before the end of an explanation, and after it

func told(explained, rest []*Op) []string {
	lines := []string{}
	began := int64(0)
	for n, op := range explained {
		if n == 0 || op.Call < began {
			began = op.Call
		}
	}
	for _, op := range explained[max(0, len(explained)-shown):] {
		lines = append(lines, line(op, began))
	}
	lines = append(lines, "--- no order of the operations explains what follows ---")
	for _, op := range rest[:min(len(rest), shown)] {
		lines = append(lines, line(op, began))
	}
	return lines
}

func line(op *Op, began int64) string {
	end := "  never  "
	if op.Return != never {
		end = fmt.Sprintf("%9.4f", float64(op.Return-began)/1e9)
	}
	return fmt.Sprintf("%9.4f to %s s  process %d: %s", float64(op.Call-began)/1e9, end, op.Pid, describe(op))
}

func describe(op *Op) string {
	answer := "no answer"
	if op.Known {
		answer = "refused"
		if op.Won {
			answer = "won"
		}
	}
	switch op.Kind {
	case "insert":
		return fmt.Sprintf("insert %s: %s%s", op.Write.short(), answer, met(op))
	case "swap":
		return fmt.Sprintf("swap %s for %s: %s%s", op.Seen.short(), op.Write.short(), answer, met(op))
	case "load":
		return fmt.Sprintf("load%s", met(op))
	case "told":
		return fmt.Sprintf("a caller is told %q", op.Value)
	case "believed":
		return fmt.Sprintf("the claim with fence %d is believed in", op.Fence)
	case "effect":
		return fmt.Sprintf("an effect with fence %d", op.Fence)
	}
	return op.Kind
}

func met(op *Op) string {
	if !op.Known || (op.Record == nil && op.Won) {
		return ""
	}
	if op.Record == nil {
		return ", no record"
	}
	return ", record " + op.Record.short()
}

func (v Version) short() string {
	return fmt.Sprintf("%.6s/%d/%d", v.Owner, v.Fence, v.Beat)
}

func (r Record) short() string {
	result := ""
	if r.Result != nil {
		result = " " + *r.Result
	}
	return fmt.Sprintf("%s %s%s", r.Version.short(), r.Status, result)
}
