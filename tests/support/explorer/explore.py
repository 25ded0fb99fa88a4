"""Explores every order of a few workers on one key: requests and replies are lost or late, workers crash, time passes. Each reachable state is checked."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from explorer.actors import KEY, Casting, Left, Parts
from explorer.moves import Moves
from explorer.states import Bounds, Slot, State, on_ending, on_state
from onceward.core import steps
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.record import COMPLETED, Record
from onceward.core.register import Register
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock

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
    with _no_collection():
        return _Explorer(moves, policy).run(stop_at_first)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector rest: looking through all states again and again takes a quarter of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
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
