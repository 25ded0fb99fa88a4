"""What must always hold: checks on a step and on a state of the explorer. Each yields a sentence per violation."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onceward.core.protocol import ABSENT, TRANSITIONS, is_live
from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.testing.actors import Left, Node

# No worker of the explorer keeps messages, so none may make the transitions of "keep".
CHANGES = frozenset((one.source, one.target) for one in TRANSITIONS if one.step != "keep")


class Moment(NamedTuple):
    """An explorer's state, as the checks see it."""

    record: Record | None
    now: float
    peak: int
    written: frozenset[tuple[str, str]]  # (owner, status) of every write that was made
    recorded: frozenset[tuple[int, str | None]]  # (fence, result) of every completion
    takeovers: int
    expiries: int
    running: Sequence[tuple[Node, float]]  # each worker with its clock
    gone: Sequence[Left]


def on_change(before: Record | None, after: Record | None, writer: str, now: float, peak: int) -> Iterator[str]:
    """Check one write. ``writer`` is the owner that sent it, ``peak`` the key's largest fence so far."""
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
    expired = before.expires_at is not None and before.expires_at <= now
    if before.status == COMPLETED and not expired:
        yield "a completed record was changed before it expired"
    if is_live(before, now) and before.owner != writer:
        yield f"{writer} changed a record whose lease {before.owner} holds"


def on_state(moment: Moment) -> Iterator[str]:
    """Compare what the workers believe and were told with the record."""
    for node, clock in moment.running:
        seat = node.seat
        if seat.holds and seat.until > clock:
            yield from _belief(seat.owner, moment)
    traces = [*moment.gone, *(node.left for node, _ in moment.running)]
    for told in [trace.told for trace in traces if trace.told]:
        yield from _told(told.what, told.owner, told.record, moment)
    effects = [fence for trace in traces for fence in trace.effects]
    failures = sum(trace.failures for trace in traces)
    allowed = 1 + moment.takeovers + moment.expiries + failures
    if len(effects) > allowed:
        yield f"{len(effects)} effects, though only {moment.takeovers} lapses and {failures} failures allow a retry"
    if len(set(effects)) < len(effects):
        yield "two effects ran under one fence"


def _belief(owner: str, moment: Moment) -> Iterator[str]:
    """Check that the record names a worker that believes in its lease, so two never believe at once."""
    record = moment.record
    if record is None or record.owner != owner:
        yield f"{owner} believes in its lease, and the record is {record and record.owner}'s"
    elif record.status == IN_PROGRESS and not is_live(record, moment.now):
        yield f"{owner} believes in its lease, which has lapsed in the store"


def _told(what: str, owner: str, record: Record | None, moment: Moment) -> Iterator[str]:
    if what == "completed" and record is not None:
        mine = f"by {owner}"
        if (record.status, record.result) != (COMPLETED, mine) or (record.fence, mine) not in moment.recorded:
            yield f"{owner} was told that its result is recorded, and it is not"
        expired = record.expires_at is not None and record.expires_at <= moment.now
        if not expired and moment.record != record:
            yield f"{owner}'s completion did not last"
    elif what in {"completed", "released", "parked"} and record is None:
        yield f"{owner} was told {what} about no record"
    elif what in {"released", "parked"}:
        if not any(o == owner and status != IN_PROGRESS for o, status in moment.written):
            yield f"{owner} was told that it {what} the key, and no such write was made"
    elif what == "lost" and (owner, COMPLETED) in moment.written and not moment.expiries:
        yield f"{owner} was told that its claim is lost, and its completion stands"
    elif what == "replay" and (record is None or (record.fence, record.result) not in moment.recorded):
        yield f"{owner} was given a result that nobody recorded"
