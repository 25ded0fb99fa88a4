"""Defects that the histories must show, planted into a process by name."""

from collections.abc import Callable

from onceward.core import conditions, protocol
from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, IN_PROGRESS, Record, Reply, Write
from onceward.stores.contract import Store


def _blind_swap(store: Store) -> None:
    """A swap does not compare the version."""
    swap = store.swap

    def blind(write: Write, seen: Record) -> Steps[Reply]:
        held = (yield from store.load(write.key)).record
        return (yield from swap(write, held or seen))

    store.swap = blind  # type: ignore[method-assign]


def _stale_answer(store: Store) -> None:
    """A refused insert shows the record that the first one has shown."""
    insert, kept = store.insert, {}

    def stale(write: Write) -> Steps[Reply]:
        reply = yield from insert(write)
        return reply if reply.won else kept.setdefault(write.key, reply)

    store.insert = stale  # type: ignore[method-assign]


def _lost_write(store: Store) -> None:
    """Each twentieth swap is answered and not made."""
    swap, count = store.swap, 0

    def lost(write: Write, seen: Record) -> Steps[Reply]:
        nonlocal count
        count += 1
        if count % 20:
            return (yield from swap(write, seen))
        reply = yield from store.load(write.key)
        return Reply(True, write.at(reply.now), reply.now)

    store.swap = lost  # type: ignore[method-assign]


def _live_taken(_: Store) -> None:
    """A live lease is taken over."""
    is_taken = lambda rule: rule.verdict is protocol.Verdict.BUSY and conditions.LEASE_LIVE in rule.conditions
    protocol.CHECKS = protocol.by_status(tuple(rule for rule in protocol.RULES if not is_taken(rule)))


def _again(_: Store) -> None:
    """A completed key runs again."""
    replays = lambda rule: rule.verdict is protocol.Verdict.REPLAY
    changed = tuple(rule._replace(verdict=protocol.Verdict.NEXT) if replays(rule) else rule for rule in protocol.RULES)
    protocol.CHECKS = protocol.by_status(changed)


def _same_fence(store: Store) -> None:
    """A takeover keeps the fence of the claim before it."""
    swap = store.swap

    def same(write: Write, seen: Record) -> Steps[Reply]:
        if write.owner != seen.owner and write.status == IN_PROGRESS:
            write = write._replace(fence=seen.fence)
        return swap(write, seen)

    store.swap = same  # type: ignore[method-assign]


def _other_result(store: Store) -> None:
    """A completion is shown with another result than was recorded."""
    insert = store.insert

    def other(write: Write) -> Steps[Reply]:
        reply = yield from insert(write)
        if reply.record is not None and reply.record.status == COMPLETED:
            reply = reply._replace(record=reply.record._replace(result='"another"'))
        return reply

    store.insert = other  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[Store], None]] = {
    "blind-swap": _blind_swap,
    "stale-answer": _stale_answer,
    "lost-write": _lost_write,
    "live-taken": _live_taken,
    "again": _again,
    "same-fence": _same_fence,
    "other-result": _other_result,
}
