"""What must never be seen, by the journal and the ledger alone: DESIGN.md's invariants. Leases and fences are histories' business."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from torture.facts import Call, Facts, Run, Told
from torture.plan import IN_SQL, MANY

RAISED = {"SoftLimit", "HardStop", "KeyboardInterrupt", "CancelledError", "Declined"}
UNRECORDED = ("LeaseLost", "ResultNotRecorded", "claim was lost before", "could not be recorded", "StoreError")
# claim.complete() is called by the block itself: what strikes before it has begun has struck in the block.
IN_BLOCK = {"complete", "complete_async", "_completing", "_settle", "_settle_async", "_begin_end", "_check_free"}
IN_BLOCK |= {"__exit__", "__aexit__"}
# Of the body's own statements on a connection that was lost.
DRIVERS = {"OperationalError", "ConnectionTimeout", "InterfaceError"}
SLOW = "ConnectionTimeout"  # also of a busy machine
_TRIES = 4  # requests and replies lost in one call after which it may give up
PATIENCE = 2  # so many interrupts of one settling mean a crash


def never_twice(facts: Facts) -> Iterator[str]:
    """No effect happens again without a reason that the rules name."""
    for key in facts.plan.keys:
        made = [run for run in facts.runs_of(key) if run.effect is not None]
        for before, again in pairwise(made):
            if not _may_follow(facts, before) and not _woke_late(facts, again):
                yield f"{key}: run {before.name} returned ({_what(before)}), and run {again.name} made it again"
        if len(facts.rows[key]) > 1:
            yield f"{key}: {len(facts.rows[key])} effects committed with a record, of {facts.rows[key]}"


def _may_follow(facts: Facts, before: Run) -> bool:
    if before.left is None:
        return True
    told = before.call.told.get(before.key)
    if told is None:
        return before.call.pid in facts.deaths
    if told.error is None or not any(word in told.all for word in UNRECORDED):
        settling = [one for one in before.call.interrupts if one["t"] >= before.left]
        if facts.plan.shape.startswith("claim") and any(one["function"] in IN_BLOCK for one in settling):
            return True
        return told.error is not None and len(settling) >= PATIENCE
    return True


def _woke_late(facts: Facts, run: Run) -> bool:
    """Return whether a worker was stopped for a lease between its claim and its handler, where nobody can look any more."""
    told = run.call.told.get(run.key)
    unrecorded = told is None or (told.error is not None and any(word in told.all for word in UNRECORDED))
    return unrecorded and facts.stopped(run.call.pid, run.call.began, run.entered) >= facts.plan.lease


def _what(run: Run) -> str:
    told = run.call.told.get(run.key)
    strikes = ", ".join(f"{one['kind']} at {one['where']}" for one in run.call.strikes)
    return f"told {told.all if told and told.error else told and told.value!r}; strikes: {strikes or 'none'}"


def never_a_step_again(facts: Facts) -> Iterator[str]:
    """A step whose result a handler was told is made by no later claim, and has one result for all."""
    told: dict[tuple[str, str], tuple[Run, str]] = {}
    for run, step, value in facts.got:
        first, known = told.setdefault((run.key, step), (run, value))
        if value != known:
            yield f"{run.key}: step {step} gave {known} to run {first.name}, and {value} to {run.name}"
        if run.fence < first.fence:
            told[run.key, step] = run, value
    for run, step in facts.made:
        first, _ = told.get((run.key, step), (run, ""))
        if run.fence > first.fence:
            yield f"{run.key}: step {step} was recorded for run {first.name}, and made again by {run.name}"
    for (run, step), count in Counter((run.name, step) for run, step in facts.made).items():
        if count > 1:
            yield f"run {run} made step {step} {count} times"


def never_missing(facts: Facts) -> Iterator[str]:
    """At the end each key is completed, by a handler that returned."""
    for key in facts.plan.keys:
        record = facts.records.get(key)
        if record is None or record.status != "COMPLETED":
            yield f"{key}: {'has no record' if record is None else f'is {record.status}'} after the leases were over"
            continue
        runs = facts.runs_of(key)
        if not record.stored and facts.plan.shape not in IN_SQL:
            if not any(run.left is not None and (run.call.interrupts or _had_no_time(facts, run)) for run in runs):
                yield f"{key}: is completed without a result, and neither an interrupt nor a lack of time was the cause"
            continue
        name = str(record.result).partition("/")[2]
        if facts.plan.shape in IN_SQL:
            made = facts.rows[key]
            if made != [name] and (record.stored or len(made) != 1):
                yield f"{key}: is completed by run {name or record.result!r}, and the effects are of {made}"
        elif not any(run.name == name and run.left is not None and run.effect is not None for run in runs):
            yield f"{key}: is completed with {record.result!r}, and no such run made its effect and returned"


def _had_no_time(facts: Facts, run: Run) -> bool:
    """Return whether recording the result took a lease, or renewals had failed before: then it is recorded without results."""
    if run.left is None:
        return False
    told = run.call.told.get(run.key)
    ended = run.call.ended if told is None else told.at
    if ended is None or ended - run.left >= 0.9 * facts.plan.lease:
        return True
    return sum(run.left - facts.plan.lease <= at <= ended for at in facts.wire) > 1


def never_a_falsehood(facts: Facts) -> Iterator[str]:
    """What callers were told is true."""
    for call in facts.calls.values():
        for told in call.told.values():
            for false in _false(facts, call, told):
                yield f"{told.key}: call {call.name} was told {told.error or repr(told.value)}: {false}"


def never_swallowed(facts: Facts) -> Iterator[str]:
    """An interrupt reaches the caller, once the outcome is recorded; also when it is an Exception."""
    if facts.plan.shape in MANY:
        return  # which report what happened to each key by itself
    for call in facts.calls.values():
        for told in call.told.values():
            struck = [one for one in call.interrupts if one["kind"] != "cancel" and one["phase"] in {"call", "settle"}]
            struck = [one for one in struck if one["t"] < told.at]  # an event loop that closes takes some time
            struck = [one for one in struck if "importlib" not in one["where"] and not one["callback"]]
            # The import system swallows some, and an event loop all but two kinds.
            struck = [one for one in struck if one["serial"] or call.caught]  # see Timers._traced
            if any(one["where"].startswith("results/") for one in struck):
                continue  # one in the encoding passes for what the value's own code raises
            if struck and told.error in {None, "Completed"}:
                where = ", ".join(f"{one['kind']} at {one['where']}" for one in struck)
                yield f"{told.key}: call {call.name} was told {told.value!r}, and never of {where}"


def _false(facts: Facts, call: Call, told: Told) -> Iterator[str]:
    record = facts.records.get(told.key)
    if told.error in {None, "Completed"}:
        if record is None or record.status != "COMPLETED":
            yield f"the record is {record and record.status}"
        elif record.stored and record.result != told.value:
            yield f"the recorded result is {record.result!r}"
    elif told.error == "ResultUnavailable":
        if record is None or record.status != "COMPLETED" or record.stored:
            yield f"the record is {record}"
    elif told.error == "Busy":
        yield from _nobody_holds(facts, call, told)
    elif told.error in {"LeaseLost", "ResultNotRecorded", "StepNotRecorded", "StoreError", "KeyLocked"}:
        yield from _no_reason(facts, call, told)
    elif told.error in DRIVERS and facts.plan.shape in IN_SQL and (facts.wire or call.strikes or told.error == SLOW):
        return
    elif told.error not in RAISED:
        yield f"an error that nobody should see: {told.text[:200]}"


def _nobody_holds(facts: Facts, call: Call, told: Told) -> Iterator[str]:
    for other in facts.calls_of(told.key):
        if other is not call and other.began <= told.at and _holds_until(facts, other, told.key) >= call.began:
            return
    yield f"nobody can hold the key (retry_after {told.retry_after})"


def _holds_until(facts: Facts, call: Call, key: str) -> float:
    """Return the latest time at which a claim that this call made may be live."""
    told = call.told.get(key)
    ended = told.at if told is not None else facts.deaths.get(call.pid, call.ended)
    if ended is None:
        return float("inf")
    clean = told is not None and not told.notes and not call.strikes
    if clean and told is not None and told.error in {None, "Completed", "Busy", "Declined"}:
        return ended
    if facts.wire and facts.plan.store not in {"sqlite", "redis"}:
        return float("inf")  # a late request may claim at any time
    return ended + facts.plan.lease + 2 * facts.plan.resolution + 0.5


def _no_reason(facts: Facts, call: Call, told: Told) -> Iterator[str]:
    plan = facts.plan
    lapse = 0.9 * (plan.lease - plan.lease / 100 - plan.resolution)
    others = [one for one in facts.calls_of(told.key) if one is not call and one.began <= told.at]
    lapsed = told.at - call.began >= lapse
    if told.error == "LeaseLost":
        overtaken = any((one.ended or facts.deaths.get(one.pid, told.at)) >= call.began for one in others)
        if not overtaken and not lapsed:
            yield f"nobody took over, and no lease lapsed within {told.at - call.began:.2f} s"
    elif told.error in {"ResultNotRecorded", "StepNotRecorded"}:
        if not lapsed and not _cut_off(facts, call, told):
            yield f"the store was there, and no lease lapsed within {told.at - call.began:.2f} s: {told.text[-200:]}"
    elif not (facts.wire or facts.stops or call.strikes or "foreign key" in told.text.lower()):
        yield f"the store was there: {told.text[:200]}"


def _cut_off(facts: Facts, call: Call, told: Told) -> bool:
    """Return whether the store stayed away: a lease of less than a second has no time for many tries."""
    return sum(call.began <= at <= told.at for at in facts.wire) >= _TRIES


def never_hangs(facts: Facts) -> Iterator[str]:
    """Every call ends, unless asyncio's own code lost an exception: it came too late for onceward's, and the loop never stops."""
    for event in [one for one in facts.events["hung"] if one["actor"] not in facts.broken_loops]:
        call = next((one for one in reversed(facts.calls.values()) if one.pid == event["actor"]), None)
        strikes = ", ".join(f"{one['kind']} at {one['where']}" for one in (call.strikes if call else ()))
        yield f"actor {event['number']} hangs in call {call and call.name} of {call and call.keys}; strikes: {strikes}"
    for event in facts.events["broke"]:
        yield f"an actor ended with {event['code']}"


RULES = (never_twice, never_a_step_again, never_missing, never_a_falsehood, never_swallowed, never_hangs)


def check(facts: Facts) -> list[str]:
    """Return everything that was seen and must not be."""
    return list(dict.fromkeys(f"{rule.__name__}: {sentence}" for rule in RULES for sentence in rule(facts)))
