"""The explorer's states, how much can go wrong between them, and what must always hold: a sentence for each violation."""

import sys
from collections.abc import Iterator
from typing import NamedTuple

from explorer.actors import Left, Node, messages_in, steps_in
from onceward.core.policy import Policy
from onceward.core.protocol import has_messages, is_live, may_send
from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.testing.clock import EPOCH
from places import DOCS

sys.path.insert(0, str(DOCS))
from transitions import ABSENT, TRANSITIONS

SLOW = 0.9905  # how fast the workers' clocks run; the protocol allows for a hundredth


class Bounds(NamedTuple):
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

    slots: tuple[Slot | Left, ...]
    record: Record | None = None
    now: float = EPOCH
    peak: int = 0  # the key's largest fence so far
    written: frozenset[tuple[str, str]] = frozenset()  # (owner, status) of every write that was made
    recorded: frozenset[tuple[int, str | None]] = frozenset()  # (fence, result) of every completion
    flights: tuple[tuple[Node, str], ...] = ()  # requests in flight whose senders no longer wait: the node, its owner
    stepped: frozenset[tuple[str, int]] = frozenset()  # each step that was recorded, with the fence of its claim
    committed: frozenset[tuple[int, int]] = frozenset()  # each message of a completion, with the fence of its claim
    sent: frozenset[tuple[int, int]] = frozenset()  # each message that was sent, with the fence of its claim
    takeovers: int = 0
    expiries: int = 0
    lapses: int = 0
    faults: int = 0
    crashes: int = 0
    interrupts: int = 0

    def put(self, number: int, slot: Slot | Left) -> "State":
        return self._replace(slots=(*self.slots[:number], slot, *self.slots[number + 1 :]))

    def fly(self, node: Node) -> "State":
        flights = (*self.flights, (node, node.seat.owner))
        return self._replace(flights=tuple(sorted(flights, key=lambda flight: id(flight[0]))))

    def clock(self, number: int) -> float:
        """Return a worker's monotonic clock. Each starts at another time and runs slower than the store's."""
        return 1000.0 + 4321.0 * number + (self.now - EPOCH) * SLOW


# No worker of the explorer keeps messages or settles keys by hand, so none may make those transitions.
CHANGES = frozenset((one.source, one.target) for one in TRANSITIONS if one.step not in {"keep", "settle"})


def on_change(state: State, after: Record | None, writer: str) -> Iterator[str]:
    """Check one write in ``state``. ``after`` is the record that it made, ``writer`` the owner that sent it."""
    before, now, peak = state.record, state.now, state.peak
    source, target = (ABSENT if r is None else r.status for r in (before, after))
    if (source, target) not in CHANGES:
        yield f"a record went from {source} to {target}, which is no transition of the protocol"
    if after is None:
        return
    if before is None or after.owner != before.owner:
        if after.fence <= peak:
            yield f"the owner changed and the fence did not grow: {peak}, then {after.fence}"
    elif after.fence != before.fence:
        yield "the fence changed under one owner"
    if before is None:
        return
    if not set(steps_in(before)) <= set(steps_in(after)) and after.attempts > 1:
        yield "a recorded step was forgotten"
    expired = before.expires_at is not None and before.expires_at <= now
    if before.status == COMPLETED and not expired and not (has_messages(before) and _final(before) == _final(after)):
        yield "a completed record was changed before it expired"
    if is_live(before, now) and before.owner != writer:
        yield f"{writer} changed a record whose lease {before.owner} holds"


def on_state(state: State) -> Iterator[str]:
    """Compare what the workers believe and were told with the record."""
    seats = [(slot.node.seat, state.clock(number)) for number, slot in enumerate(state.slots) if isinstance(slot, Slot)]
    for seat, clock in seats:
        if seat.holds and seat.until > clock:
            yield from _belief(seat.owner, state)
    senders = [seat.owner for seat, clock in seats if seat.sending > clock]
    if len(senders) > 1:
        yield f"{' and '.join(senders)} believe that they alone send the messages"
    traces = [slot if isinstance(slot, Left) else slot.node.left for slot in state.slots]
    for told in [trace.told for trace in traces if trace.told]:
        yield from _told(*told, state)
    effects = [fence for trace in traces for fence in trace.effects]
    failures = sum(trace.failures for trace in traces)
    allowed = 1 + state.takeovers + state.expiries + failures
    if len(effects) > allowed:
        yield f"{len(effects)} effects, though only {state.takeovers} lapses and {failures} failures allow a retry"
    made = [step for trace in traces for step in trace.made]
    for name, fence in state.stepped if not state.expiries else ():
        if any(step == name and later > fence for step, later in made):
            yield f"step {name} was recorded, and made again"
    recorded = {int(name) for name, _ in state.stepped}
    for number in {int(name) for name, _ in made}:
        if number and number - 1 not in recorded:
            yield f"step {number} was made before step {number - 1} was recorded"
    if len(set(made)) < len(made):
        yield "a step was made twice under one fence"
    if len(set(effects)) < len(effects):
        yield "two effects ran under one fence"


def on_sent(state: State, option: str) -> tuple[State, list[str]]:
    """Return the state after a worker has chosen ``option``, and what is wrong if that sends a message."""
    if not option.startswith("sends message "):
        return state, []
    number, fence = (int(word) for word in option.split() if word.isdecimal())
    wrongs = []
    if fence not in {recorded for recorded, _ in state.recorded}:
        wrongs.append("a message was sent, and its completion is not recorded")
    if any((earlier, fence) not in state.sent for earlier in range(number)):
        wrongs.append("a message was sent before an earlier one of its key")
    return state._replace(sent=state.sent | {(number, fence)}), wrongs


def on_ending(state: State, policy: Policy) -> Iterator[str]:
    """Check that each message that was committed is sent, or will be found by a relay."""
    record = state.record
    if record is not None and has_messages(record) and not may_send(record, state.now + policy.lease):
        yield "messages are left, and no relay will find them"
    for number, fence in state.committed - state.sent:
        if record is None or record.fence != fence or str(number) not in messages_in(record):
            yield "a message was committed, and never sent"


def _final(record: Record) -> tuple[object, ...]:
    """Return what sending messages does not change in a completed record."""
    return record.status, record.owner, record.fence, record.result, record.lease_until


def _belief(owner: str, state: State) -> Iterator[str]:
    """Check that the record names a worker that believes in its lease, so two never believe at once."""
    record = state.record
    if record is None or record.owner != owner:
        yield f"{owner} believes in its lease, and the record is {record and record.owner}'s"
    elif record.status == IN_PROGRESS and not is_live(record, state.now):
        yield f"{owner} believes in its lease, which has lapsed in the store"


def _told(what: str, owner: str, record: Record | None, state: State) -> Iterator[str]:
    if what == "completed" and record is not None:
        mine = f"by {owner}"
        if (record.status, record.result) != (COMPLETED, mine) or (record.fence, mine) not in state.recorded:
            yield f"{owner} was told that its result is recorded, and it is not"
        expired = record.expires_at is not None and record.expires_at <= state.now
        if not expired and (state.record is None or _final(state.record) != _final(record)):
            yield f"{owner}'s completion did not last"
    elif what in {"completed", "released", "parked"} and record is None:
        yield f"{owner} was told {what} about no record"
    elif what in {"released", "parked"}:
        if not any(o == owner and status != IN_PROGRESS for o, status in state.written):
            yield f"{owner} was told that it {what} the key, and no such write was made"
    elif what == "lost" and (owner, COMPLETED) in state.written and not state.expiries:
        yield f"{owner} was told that its claim is lost, and its completion stands"
    elif what == "replay" and (record is None or (record.fence, record.result) not in state.recorded):
        yield f"{owner} was given a result that nobody recorded"
