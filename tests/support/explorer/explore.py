"""Explores every order of a few workers on one key: requests and replies are lost or late, workers crash, time passes. Each reachable state is checked."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from explorer.actors import KEY, Casting, Choice, Left, Node, Parts, messages_in, steps_in
from explorer.states import Bounds, Slot, State, on_change, on_ending, on_sent, on_state
from onceward.core import steps
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.record import COMPLETED, IN_PROGRESS, Record, Reply
from onceward.core.register import Register
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock

Move = tuple[str, State, list[str]]  # what happens, the state after it, and what is wrong with it


@dataclass
class Moves:
    casts: Sequence[Casting]
    store: MemoryStore
    clock: ManualClock
    bounds: Bounds
    lease: float  # of the workers, in seconds
    _nodes: dict[tuple[int, Left, float], Node] = field(default_factory=dict)
    _arrived: dict[tuple[Node, Record | None, float], tuple[object, Record | None]] = field(default_factory=dict)

    def first(self) -> State:
        """Return the state in which each worker has just got the message."""
        state = State((Left(),) * len(self.casts))
        return state._replace(slots=tuple(Slot(self._begun(state, cast.number, Left())) for cast in self.casts))

    def after(self, state: State) -> Iterator[Move]:
        bounds = self.bounds
        for number, slot in enumerate(state.slots):
            if isinstance(slot, Slot):
                yield from self._of_worker(state, number, slot)
            elif not slot.over and _worth_it(state, slot):
                begun = Slot(self._begun(state, number, slot))
                yield f"{number} is given the message again", state.put(number, begun), []
        for flight in state.flights:
            left = list(state.flights)
            left.remove(flight)
            after, _, wrongs = self._arrive(state._replace(flights=tuple(left)), *flight)
            yield f"late request of {flight[1]} arrives", after, wrongs
        record = state.record
        if bounds.purges and record is not None and record.expires_at is not None and record.expires_at <= state.now:
            gone = state._replace(record=None, expiries=state.expiries + 1)
            yield "the record is purged", gone, list(on_change(state, None, ""))
        if state.lapses < bounds.lapses and any(isinstance(slot, Slot) for slot in state.slots):
            for stride in bounds.strides:
                later = state._replace(now=state.now + stride * self.lease, lapses=state.lapses + 1)
                yield f"time: {stride} leases pass", later, []

    def restore(self, state: State, later: float = 0.0) -> None:
        """Put the store and its clock into a state, or so many leases after it."""
        self.clock.advance(state.now + later * self.lease - self.clock())
        self.store.records = {} if state.record is None else {KEY: state.record}

    def _of_worker(self, state: State, number: int, slot: Slot) -> Iterator[Move]:
        node, pending, bounds = slot.node, slot.node.pending, self.bounds
        if isinstance(pending, Choice):
            for option in pending.options:
                after, wrongs = on_sent(state, option)
                yield f"{number} {option}", *_sent(after, number, node, "reply", option, wrongs)
        elif slot.reply is not None:
            # A slow reply differs from an immediate one only if time has passed.
            if state.lapses > slot.since:
                yield f"{number} gets its slow reply", *_sent(state, number, node, "reply", slot.reply)
        else:
            yield from self._of_request(state, number, node)
        on_its_way = bounds.late and slot.reply is None and not isinstance(pending, Choice)
        flown = state.fly(node) if on_its_way else state
        if state.crashes < bounds.crashes:
            gone = flown._replace(crashes=state.crashes + 1)
            yield f"{number} crashes", gone.put(number, node.left._replace(over=True)), []
        if state.interrupts < bounds.interrupts and node.seat.claiming:
            stopped = flown._replace(interrupts=state.interrupts + 1)
            yield f"{number} is interrupted", *_sent(stopped, number, node, "interrupt", None)

    def _of_request(self, state: State, number: int, node: Node) -> Iterator[Move]:
        bounds = self.bounds
        after, reply, wrongs = self._arrive(state, node, node.seat.owner)
        yield f"{number} asks", *_sent(after, number, node, "reply", reply, wrongs)
        if state.lapses < bounds.lapses:
            yield f"{number} asks, reply on its way", after.put(number, Slot(node, reply, state.lapses)), wrongs
        if state.faults < bounds.faults:
            failed = state._replace(faults=state.faults + 1)
            if bounds.late:  # in flight for ever is the same as lost
                failed = failed.fly(node)
                lost = _sent(failed, number, node, "error", "lost")
                yield f"{number} gives up its request, which is on its way", *lost
            else:
                yield f"{number}'s request is lost", *_sent(failed, number, node, "error", "lost")
                lost = after._replace(faults=state.faults + 1)
                yield f"{number}'s reply is lost", *_sent(lost, number, node, "error", "lost", wrongs)

    def _begun(self, state: State, number: int, left: Left) -> Node:
        begun = (number, left, state.clock(number))
        if begun not in self._nodes:
            self._nodes[begun] = Node(self.casts[number], left, begun[2])
        return self._nodes[begun]

    def _arrive(self, state: State, node: Node, owner: str) -> tuple[State, object, list[str]]:
        """Let the store do one request. Return the state after it, the reply, and what was wrong with the write."""
        before = state.record
        arrived = (node, before, state.now)
        if arrived not in self._arrived:
            self.restore(state)
            reply = _without_history(self.store.exchange(node.pending))
            self._arrived[arrived] = reply, _without_history(self.store.records.get(KEY))
        reply, after = self._arrived[arrived]
        if after is before or after == before:
            return state, reply, []
        wrongs = list(on_change(state, after, owner))
        if after is None:
            return state._replace(record=None), reply, wrongs
        taken = before if before is not None and after.owner != before.owner else None
        changed = state._replace(
            record=after,
            peak=max(state.peak, after.fence),
            written=state.written | {(after.owner, after.status)},
            recorded=state.recorded | ({(after.fence, after.result)} if after.status == COMPLETED else set()),
            committed=state.committed | {(int(number), after.fence) for number in messages_in(after)},
            stepped=state.stepped | {(name, after.fence) for name in set(steps_in(after)) - set(steps_in(before))},
            takeovers=state.takeovers
            + (taken is not None and taken.status == IN_PROGRESS and taken.lease_until <= state.now),
            expiries=state.expiries + (taken is not None and taken.status == COMPLETED),
        )
        return changed, reply, wrongs


def _without_history(answer: Any) -> Any:
    """Return a record or an answer without the history: nothing is decided by it, and it would make each path a state."""
    if isinstance(answer, Record):
        return answer if answer.history is None else answer._replace(history=None)
    if isinstance(answer, Reply):
        return answer._replace(record=_without_history(answer.record))
    return [_without_history(one) for one in answer] if isinstance(answer, list) else answer


def _sent(
    state: State, number: int, node: Node, kind: str, value: object, wrongs: Sequence[str] = ()
) -> tuple[State, list[str]]:
    """Return the state after a worker got something, and what is wrong: ``wrongs``, and the worker's trouble."""
    after = node.step(kind, value, state.clock(number))
    trouble = [] if after.trouble is None else [f"a worker met {after.trouble!r}"]
    return state.put(number, after.left if after.pending is None else Slot(after)), [*wrongs, *trouble]


def _worth_it(state: State, left: Left) -> bool:
    """Return whether to deliver again: a delivery that meets the same record as the last one changes nothing."""
    seen = left.seen
    return seen is None or seen != state.record or state.now >= seen.lease_until


View = Callable[[MemoryStore, Callable[[], float]], Register]


@dataclass
class Explored:
    states: int = 0
    steps: int = 0
    endings: int = 0
    violations: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        found = "; ".join(self.violations) or "no violation"
        return f"{self.states} states, {self.steps} steps, {self.endings} endings: {found}"


def explore(
    workers: int = 2,
    *,
    policy: Policy = Policy(lease=60.0),
    bounds: Bounds = Bounds(),
    deliveries: int = 2,
    beats: int = 1,
    fails: bool = True,
    transacts: int = 0,
    handler_steps: int = 0,
    messages: int = 0,
    relays: int = 0,
    parts: Parts = Parts(),
    store: Callable[[ManualClock], MemoryStore] = MemoryStore,
    view: View | None = None,
    stop_at_first: bool = False,
) -> Explored:
    """Try every order of the workers' steps on one key and check every state."""
    clock = ManualClock()
    ledger = store(clock)

    def cast(number: int) -> Casting:
        def wall() -> float:  # an hour ahead, right, or an hour behind
            return clock() + (3600.0, 0.0, -3600.0)[number % 3]

        register = ledger if view is None else view(ledger, wall)
        role = (deliveries, beats, fails, number < transacts, handler_steps, messages, number >= workers)
        return Casting(number, register, parts, policy, *role)

    moves = Moves([cast(number) for number in range(workers + relays)], ledger, clock, bounds, policy.lease)
    was = gc.isenabled()
    gc.disable()  # looking through all states again and again takes a quarter of the time
    try:
        return _Explorer(moves, policy).run(stop_at_first)
    finally:
        if was:
            gc.enable()


class _Explorer:
    def __init__(self, moves: Moves, policy: Policy) -> None:
        self._moves, self._policy = moves, policy
        self._probed: set[tuple[Record | None, float]] = set()
        self._came_from: dict[State, tuple[State, str]] = {}
        self._seen = Explored()

    def run(self, stop_at_first: bool) -> Explored:
        seen, first = self._seen, self._moves.first()
        visited, todo = {first}, [first]
        while todo and not (stop_at_first and seen.violations):
            state = todo.pop()
            is_quiet = not any(isinstance(slot, Slot) for slot in state.slots)
            for label, after, wrongs in self._moves.after(state):
                seen.steps += 1
                is_quiet = is_quiet and label.startswith("time")
                found = wrongs
                if after not in visited:
                    visited.add(after)
                    self._came_from[after] = (state, label)
                    found = [*wrongs, *on_state(after)]
                    todo.append(after)
                self._note(found, state, label)
            if is_quiet:
                seen.endings += 1
                self._note(self._ending(state), state)
        seen.states = len(visited)
        return seen

    def _note(self, wrongs: Iterable[str], state: State, *last: str) -> None:
        for wrong in wrongs:
            if wrong not in self._seen.violations:
                self._seen.violations[wrong] = [*self._path(state), *last]

    def _path(self, state: State) -> list[str]:
        labels: list[str] = []
        while state in self._came_from:
            state, label = self._came_from[state]
            labels.append(label)
        return labels[::-1]

    def _ending(self, state: State) -> Iterator[str]:
        """Check a final state: without a crash all were told something, and the key is not stuck."""
        told = [slot.told.what if isinstance(slot, Left) and slot.told else "nothing" for slot in state.slots]
        if not state.crashes and "nothing" in told:
            yield "a worker ended without being told anything"
        if "completed" in told and (state.record is None or state.record.status != COMPLETED) and not state.expiries:
            yield "a worker was told that the key is completed, and it is not"
        yield from on_ending(state, self._policy)
        if (state.record, state.now) not in self._probed:
            self._probed.add((state.record, state.now))
            yield from self._probe(state)

    def _probe(self, state: State) -> Iterator[str]:
        """Check that one more delivery, after all leases, runs the handler or is told why not."""
        self._moves.restore(state, later=2)
        bid = Bid(KEY, "probe", None, self._policy, lambda: 0.0)
        outcome: Won | Replay | Refused = drive(steps.claim(self._moves.store, bid), self._moves.store)
        if isinstance(outcome, Refused) and outcome.verdict is not Verdict.PARKED:
            yield f"the key is stuck: {outcome.verdict.value} after every lease is over"
