"""Defects that the histories must show, planted into a process by name."""

from collections.abc import Callable

from onceward.core import conditions, protocol
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.stores.contract import Store


def _blind_swap(store: Store) -> None:
    """A swap does not compare the version."""
    swap = store.swap

    def blind(write: Write, seen: Record) -> Steps[Reply]:
        held = (yield from store.load(write.key)).record
        return (yield from swap(write, held or seen))

    store.swap = blind  # type: ignore[method-assign]


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


PLANTS: dict[str, Callable[[Store], None]] = {
    "blind-swap": _blind_swap,
    "lost-write": _lost_write,
    "live-taken": _live_taken,
    "again": _again,
}
