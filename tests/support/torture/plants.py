"""Bugs that the campaign must find, planted into a process by name."""

from collections.abc import Callable, Iterator

from onceward import StoreError
from onceward.core import drivers as drive
from onceward.core import many, protocol, steps, writes
from onceward.core.record import Record, Write
from onceward.stores.contract import Store


def plant(name: str | None) -> None:
    if name is not None:
        PLANTS[name]()


def _lost_claim() -> None:
    """A claim whose reply was lost is not recognised."""
    rules = tuple(rule for rule in protocol.RULES if rule.verdict is not protocol.Verdict.WON)
    protocol.CHECKS = protocol.by_status(rules)


def _abandoned() -> None:
    """Settling ends where it is interrupted, and the outcome is not recorded."""
    from onceward.claim import guard, held, running

    def settle(make: Callable, store: Store, patience: int = 2) -> object:
        return drive.drive(make(), store)

    async def settle_async(make: Callable, store: Store, patience: int = 2) -> object:
        return await drive.drive_async(make(), store)

    for module in (held, guard):
        module.settle, module.settle_async = settle, settle_async
    running.is_cut_short = lambda *_: False


def _failed_commit() -> None:
    """A COMMIT that fails counts as made."""
    from onceward.stores.sqlite.session import SqliteSession

    commit = SqliteSession.commit

    def committed(self: SqliteSession) -> Iterator[object]:
        try:
            yield from commit(self)
        except StoreError:
            yield "ROLLBACK"

    SqliteSession.commit = committed


def _forgotten_steps() -> None:
    """A claim after another one begins without the steps that are recorded."""
    whole = writes.next_claim

    def forgetting(claim: Write, held: Record, **given: bool) -> Write:
        return whole(claim, held._replace(steps=None), **given)

    steps.next_claim = many.next_claim = forgetting


PLANTS = {
    "lost-claim": _lost_claim,
    "abandoned": _abandoned,
    "failed-commit": _failed_commit,
    "forgotten-steps": _forgotten_steps,
}
