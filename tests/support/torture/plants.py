"""Bugs that the campaign must find, planted into a process by name."""

from collections.abc import Callable, Iterator

from onceward import StoreError
from onceward.core import drivers as drive
from onceward.core import many, protocol, steps, writes
from onceward.core.outbox_writes import noting
from onceward.core.protocol import Outcome
from onceward.core.record import COMPLETED, Record, Write
from onceward.outbox.targets import OutboxMessage, open_target
from onceward.results.message_entries import unsent_of
from onceward.stores.contract import Store


def plant(name: str | None) -> None:
    """Plant the bug with this name into this process."""
    if name is not None:
        PLANTS[name]()


def _lost_claim() -> None:
    """A claim whose reply was lost is not recognised."""
    protocol.CHECKS = protocol.by_status(
        tuple(rule for rule in protocol.RULES if rule.verdict is not protocol.Verdict.WON)
    )


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


def _forked_child() -> None:
    """A forked child may end what its parent has claimed."""
    from onceward.claim.lease import Lease

    Lease.inherited = False
    Lease.check_own = lambda self: None


def _forgotten_steps() -> None:
    """A claim after another one begins without the steps that are recorded."""
    whole = writes.next_claim

    def forgetting(claim: Write, held: Record, **given: bool) -> Write:
        return whole(claim, held._replace(steps=None), **given)

    steps.next_claim = many.next_claim = forgetting


def _sent_early() -> None:
    """Messages are sent before the completion that carries them is committed."""
    from onceward.claim.held import HeldClaim

    carrying = HeldClaim.carrying

    def sent_before(self: HeldClaim, outcome: Outcome) -> Outcome:
        if self.outbox is not None and outcome.status == COMPLETED:
            _send(self.outbox.text())
        return carrying(self, outcome)

    HeldClaim.carrying = sent_before


def _struck_out_early() -> None:
    """Messages are struck out before they are sent."""
    from onceward.claim.held import HeldClaim

    def struck_out(self: HeldClaim) -> None:
        if (text := self.record.unsent) is not None:
            steps = self.store.swap(noting(self.record, None, None, self.policy.retention), self.record)
            drive.drive(steps, self.store)
            _send(text)

    HeldClaim.hand_over = struck_out


def _send(text: str | None) -> None:
    for entry in [] if text is None else unsent_of(text).messages:
        open_target(entry.to).send([OutboxMessage(entry.key, entry.body)])


PLANTS = {
    "lost-claim": _lost_claim,
    "abandoned": _abandoned,
    "failed-commit": _failed_commit,
    "forked-child": _forked_child,
    "forgotten-steps": _forgotten_steps,
    "sent-early": _sent_early,
    "struck-out-early": _struck_out_early,
}
