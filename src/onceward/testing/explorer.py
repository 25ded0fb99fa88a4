"""Explores every interleaving of a few workers on one key, and checks each reachable state.

The workers run the real generators of ``onceward.core.protocol`` against the in-memory store. Each exchange has three
steps: the request is sent, it reaches the store, its reply reaches the worker. Anything may happen between them: messages
are lost or late, the worker crashes or is interrupted, time passes. ``explore`` tries all orders, visits each state once,
and reports violations::

    seen = explore(workers=2)
    print(seen)                     # 31415 states, 92653 steps
    assert not seen.violations

A state is the record, the time, each worker's history, and the requests in flight. ``Bounds`` limits the faults, or
exploring would never end. The workers' clocks start at any time and run slower than the store's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from onceward.core import steps
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.core.register import Register
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.stores.memory import MemoryStore
from onceward.testing.actors import KEY, Casting, Choice, Left, Node, Parts
from onceward.testing.clock import EPOCH, ManualClock
from onceward.testing.invariants import Moment, on_change, on_state

SLOW = 0.9905  # how fast the workers' clocks run; the protocol allows for a hundredth


class Bounds(NamedTuple):
    """Limits for one run, over all workers.

    Attributes:
        lapses: how often time passes, each time by one of ``strides``.
        faults: requests or replies that are lost, or requests that arrive late.
        crashes: workers that end without a word.
        interrupts: claims interrupted by a KeyboardInterrupt or a cancellation.
        late: whether a lost request can arrive later.
        strides: how many leases of time can pass at once.
        purges: whether an expired record can be purged.
    """

    lapses: int = 1
    faults: int = 1
    crashes: int = 1
    interrupts: int = 0
    late: bool = True
    strides: tuple[float, ...] = (1.0,)
    purges: bool = True


class Slot(NamedTuple):
    """A running worker in one state: its node, and the reply in flight to it since that many lapses."""

    node: Node
    reply: object = None
    since: int = -1


class State(NamedTuple):
    """The complete state. Equal states have equal futures."""

    record: Record | None
    now: float
    peak: int
    written: frozenset[tuple[str, str]]
    recorded: frozenset[tuple[int, str | None]]
    takeovers: int
    expiries: int
    slots: tuple[Slot | Left, ...]
    flights: tuple[tuple[Node, str], ...]  # requests in flight whose senders no longer wait: the node, its owner
    lapses: int
    faults: int
    crashes: int
    interrupts: int


@dataclass
class Explored:
    """What an exploration found.

    Attributes:
        states: different states reached.
        steps: steps tried between them.
        endings: states in which nothing more can happen.
        violations: sentence → the steps of the first path that leads there.
    """

    states: int = 0
    steps: int = 0
    endings: int = 0
    violations: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        found = "; ".join(self.violations) or "no violation"
        return f"{self.states} states, {self.steps} steps, {self.endings} endings: {found}"


View = Callable[[MemoryStore, Callable[[], float]], Register]


def explore(
    workers: int = 2,
    *,
    policy: Policy = Policy(lease=60.0),
    bounds: Bounds = Bounds(),
    deliveries: int = 2,
    beats: int = 1,
    fails: bool = True,
    transacts: int = 0,
    parts: Parts = Parts(),  # noqa: B008 - immutable
    store: Callable[[ManualClock], MemoryStore] = MemoryStore,
    view: View | None = None,
    stop_at_first: bool = False,
) -> Explored:
    """Try every order of the workers' steps on one key and check every state.

    Args:
        workers: how many workers there are.
        policy: the options that all of them use.
        bounds: what can go wrong, and how often.
        deliveries: how often each worker gets the message until it is told an outcome.
        beats: heartbeats that each handler can send.
        fails: whether a handler can raise.
        transacts: how many workers claim, take effect and complete in one write.
        parts: the protocol's generators, or broken ones.
        store: makes the store, or a broken one, from a clock.
        view: wraps the store for one worker, given that worker's own wall clock; for broken workers.
        stop_at_first: whether to stop at the first violation.
    """
    explorer = _Explorer(
        workers=workers,
        policy=policy,
        bounds=bounds,
        deliveries=deliveries,
        beats=beats,
        fails=fails,
        transacts=transacts,
        parts=parts,
        store=store,
        view=view,
    )
    return explorer.run(stop_at_first)


class _Explorer:
    def __init__(
        self,
        *,
        workers: int,
        policy: Policy,
        bounds: Bounds,
        deliveries: int,
        beats: int,
        fails: bool,
        transacts: int,
        parts: Parts,
        store: Callable[[ManualClock], MemoryStore],
        view: View | None,
    ) -> None:
        self._policy = policy
        self._bounds = bounds
        self._clock = ManualClock()
        self._store = store(self._clock)
        self._now = EPOCH
        self._probed: set[tuple[Record | None, float]] = set()
        self.seen = Explored()
        self._casts: list[Casting] = []
        for number in range(workers):
            register = self._store if view is None else view(self._store, self._wall(number))
            self._casts.append(Casting(number, register, parts, policy, deliveries, beats, fails, number < transacts))
        self._nodes: dict[tuple[int, Left, float], Node] = {}
        slots = tuple(Slot(self._begun(number, Left(), self._local(number, EPOCH))) for number in range(workers))
        self._first = State(None, EPOCH, 0, frozenset(), frozenset(), 0, 0, slots, (), 0, 0, 0, 0)

    def run(self, stop_at_first: bool) -> Explored:
        """Visit all states, depth first."""
        visited = {self._first}
        came_from: dict[State, tuple[State, str]] = {}
        todo = [self._first]
        while todo and not (stop_at_first and self.seen.violations):
            state = todo.pop()
            quiet = True
            for label, after, wrongs in self._steps(state):
                self.seen.steps += 1
                quiet = quiet and label.startswith("time")
                found = wrongs
                if after not in visited:
                    visited.add(after)
                    came_from[after] = (state, label)
                    found = [*wrongs, *on_state(self._moment(after))]
                    todo.append(after)
                for wrong in found:
                    if wrong not in self.seen.violations:
                        self.seen.violations[wrong] = [*_path(came_from, state), label]
            if quiet and not any(isinstance(slot, Slot) for slot in state.slots):
                self.seen.endings += 1
                for wrong in self._ending(state):
                    self.seen.violations.setdefault(wrong, _path(came_from, state))
        self.seen.states = len(visited)
        return self.seen

    # --- time -----------------------------------------------------------------------------------------------------

    def _local(self, number: int, now: float) -> float:
        """Return a worker's monotonic clock. Each starts at another time and runs slower than the store's."""
        return 1000.0 + 4321.0 * number + (now - EPOCH) * SLOW

    def _wall(self, number: int) -> Callable[[], float]:
        """Return a worker's wall clock: an hour ahead, right, or an hour behind."""
        return lambda: self._clock() + (3600.0, 0.0, -3600.0)[number % 3]

    # --- what may happen next -------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State, list[str]]]:
        bounds = self._bounds
        for number, slot in enumerate(state.slots):
            if isinstance(slot, Slot):
                yield from self._of_worker(state, number, slot)
            elif not slot.over and self._worth_it(state, slot):
                node = self._begun(number, slot, self._local(number, state.now))
                yield f"{number} is given the message again", _put(state, number, Slot(node)), []
        for flight in state.flights:
            left = list(state.flights)
            left.remove(flight)
            after, _, wrongs = self._arrive(state._replace(flights=tuple(left)), *flight)
            yield f"late request of {flight[1]} arrives", after, wrongs
        record = state.record
        if bounds.purges and record is not None and record.expires_at is not None and record.expires_at <= state.now:
            gone = state._replace(record=None, expiries=state.expiries + 1)
            yield "the record is purged", gone, list(on_change(record, None, "", state.now, state.peak))
        if state.lapses < bounds.lapses and any(isinstance(slot, Slot) for slot in state.slots):
            for stride in bounds.strides:
                later = state._replace(now=state.now + stride * self._policy.lease, lapses=state.lapses + 1)
                yield f"time: {stride} leases pass", later, []

    def _of_worker(self, state: State, number: int, slot: Slot) -> Iterator[tuple[str, State, list[str]]]:
        node, pending, bounds = slot.node, slot.node.pending, self._bounds
        if isinstance(pending, Choice):
            for option in pending.options:
                yield f"{number} {option}", self._sent(state, number, node, "reply", option), []
        elif slot.reply is not None:
            # A slow reply differs from an immediate one only if time has passed.
            if state.lapses > slot.since:
                yield f"{number} gets its slow reply", self._sent(state, number, node, "reply", slot.reply), []
        else:
            yield from self._of_request(state, number, node)
        on_its_way = bounds.late and slot.reply is None and not isinstance(pending, Choice)
        if state.crashes < bounds.crashes:
            gone = _put(state, number, node.left._replace(over=True))._replace(crashes=state.crashes + 1)
            yield f"{number} crashes", _fly(gone, node) if on_its_way else gone, []
        if state.interrupts < bounds.interrupts and node.seat.claiming:
            stopped = self._sent(state, number, node, "interrupt", None)._replace(interrupts=state.interrupts + 1)
            yield f"{number} is interrupted", _fly(stopped, node) if on_its_way else stopped, []

    def _of_request(self, state: State, number: int, node: Node) -> Iterator[tuple[str, State, list[str]]]:
        bounds = self._bounds
        after, reply, wrongs = self._arrive(state, node, node.seat.owner)
        yield f"{number} asks", self._sent(after, number, node, "reply", reply), wrongs
        if state.lapses < bounds.lapses:
            yield f"{number} asks, reply on its way", _put(after, number, Slot(node, reply, state.lapses)), wrongs
        if state.faults < bounds.faults:
            failed = self._sent(state, number, node, "error", "lost")._replace(faults=state.faults + 1)
            if bounds.late:  # in flight for ever is the same as lost
                yield f"{number} gives up its request, which is on its way", _fly(failed, node), []
            else:
                yield f"{number}'s request is lost", failed, []
                lost = self._sent(after, number, node, "error", "lost")._replace(faults=state.faults + 1)
                yield f"{number}'s reply is lost", lost, wrongs

    def _worth_it(self, state: State, left: Left) -> bool:
        """Return whether to deliver again: a delivery that meets the same record as the last one changes nothing."""
        seen = left.seen
        return seen is None or seen != state.record or state.now >= seen.lease_until

    # --- doing it -------------------------------------------------------------------------------------------------

    def _sent(self, state: State, number: int, node: Node, kind: str, value: object) -> State:
        after = node.step(kind, value, self._local(number, state.now))
        if after.trouble is not None:
            self.seen.violations.setdefault(f"a worker met {after.trouble!r}", [])
        return _put(state, number, after.left if after.pending is None else Slot(after))

    def _begun(self, number: int, left: Left, clock: float) -> Node:
        begun = (number, left, clock)
        if begun not in self._nodes:
            self._nodes[begun] = Node(self._casts[number], left, clock)
        return self._nodes[begun]

    def _arrive(self, state: State, node: Node, owner: str) -> tuple[State, object, list[str]]:
        """Let the store do one request. Return the state after it, the reply, and what was wrong with the write."""
        store, before = self._store, state.record
        self._set_clock(state.now)
        store.records = {} if before is None else {KEY: before}
        reply = store.exchange(node.pending)
        after = store.records.get(KEY)
        if after is before or after == before:
            return state, reply, []
        wrongs = list(on_change(before, after, owner, state.now, state.peak))
        if after is None:
            return state._replace(record=None), reply, wrongs
        recorded = state.recorded | {(after.fence, after.result)} if after.status == COMPLETED else state.recorded
        claimed = before is not None and after.owner != before.owner
        lapsed = claimed and before is not None and before.status == IN_PROGRESS and before.lease_until <= state.now
        expired = claimed and before is not None and before.status == COMPLETED
        changed = state._replace(
            record=after,
            peak=max(state.peak, after.fence),
            written=state.written | {(after.owner, after.status)},
            recorded=recorded,
            takeovers=state.takeovers + lapsed,
            expiries=state.expiries + expired,
        )
        return changed, reply, wrongs

    def _set_clock(self, now: float) -> None:
        self._clock.advance(now - self._clock())

    def _moment(self, state: State) -> Moment:
        return Moment(
            state.record,
            state.now,
            state.peak,
            state.written,
            state.recorded,
            state.takeovers,
            state.expiries,
            [(s.node, self._local(number, state.now)) for number, s in enumerate(state.slots) if isinstance(s, Slot)],
            [slot for slot in state.slots if isinstance(slot, Left)],
        )

    # --- endings --------------------------------------------------------------------------------------------------

    def _ending(self, state: State) -> Iterator[str]:
        """Check a final state: without a crash all were told something, and the key is not stuck."""
        told = [slot.told.what if isinstance(slot, Left) and slot.told else "nothing" for slot in state.slots]
        if not state.crashes and "nothing" in told:
            yield "a worker ended without being told anything"
        if "completed" in told and (state.record is None or state.record.status != COMPLETED) and not state.expiries:
            yield "somebody was told that the key is completed, and it is not"
        if (state.record, state.now) not in self._probed:
            self._probed.add((state.record, state.now))
            yield from self._probe(state)

    def _probe(self, state: State) -> Iterator[str]:
        """Check that one more delivery, after all leases, runs the handler or is told why not."""
        self._store.records = {} if state.record is None else {KEY: state.record}
        self._set_clock(state.now + 2 * self._policy.lease)
        bid = Bid(KEY, "probe", None, self._policy, lambda: 0.0)
        outcome: Won | Replay | Refused = drive(steps.claim(self._store, bid), self._store)
        if isinstance(outcome, Refused) and outcome.verdict is not Verdict.PARKED:
            yield f"the key is stuck: {outcome.verdict.value} after every lease is over"


def _put(state: State, number: int, slot: Slot | Left) -> State:
    return state._replace(slots=(*state.slots[:number], slot, *state.slots[number + 1 :]))


def _fly(state: State, node: Node) -> State:
    flights = (*state.flights, (node, node.seat.owner))
    return state._replace(flights=tuple(sorted(flights, key=lambda flight: id(flight[0]))))


def _path(came_from: dict[State, tuple[State, str]], state: State) -> list[str]:
    labels: list[str] = []
    while state in came_from:
        state, label = came_from[state]
        labels.append(label)
    return labels[::-1]
