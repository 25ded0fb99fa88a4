"""What a store and a caller's connection are on the stage (``stage.py``)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from onceward.core.drivers import Sleep, Steps, Transport
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.core.selections import Selection
from onceward.stores.capabilities import OUTBOX, TRANSACTION, Session
from onceward.stores.contract import Damaged, Page, Purged
from onceward.testing.faults import Ask, tagged
from onceward.testing.points import AT_EXCHANGE, IN_TRANSACTION, Mishap

if TYPE_CHECKING:
    from onceward.testing.stage import Stage


class Prompter(Protocol):
    """Sends each exchange on, or does worse."""

    def exchange(self, ask: Ask, store: Transport, mishaps: tuple[Mishap, ...] = AT_EXCHANGE) -> object:
        """Carry out one exchange with ``store``. ``mishaps`` is what can happen to it."""

    async def exchange_async(self, ask: Ask, store: Transport, mishaps: tuple[Mishap, ...] = AT_EXCHANGE) -> object:
        """Like :meth:`exchange`, for a coroutine."""


class StagedStore:
    """What a store is on the stage. It comes before the store's own class, so ``super()`` is the store as it was."""

    stage: "Stage"
    url: str

    @property
    def capabilities(self) -> Mapping[str, str]:
        return self.stage.capabilities(self)

    def exchange(self, request: object) -> object:
        ledger, prompter = self.stage.ledger(self), self.stage.prompter
        if type(request) is not Ask:
            return ledger.exchange(request)
        return ledger.exchange(request.request) if prompter is None else prompter.exchange(request, ledger)

    async def exchange_async(self, request: object) -> object:
        ledger, prompter = self.stage.ledger(self), self.stage.prompter
        if type(request) is not Ask:
            return await ledger.exchange_async(request)
        if prompter is None:
            return await ledger.exchange_async(request.request)
        return await prompter.exchange_async(request, ledger)

    def insert(self, write: Write) -> Steps[Reply]:
        return tagged("insert", (write,), self.stage.ledger(self).insert(write))

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        return tagged("swap", (write, seen), self.stage.ledger(self).swap(write, seen))

    def load(self, key: str) -> Steps[Reply]:
        return tagged("load", (key,), self.stage.ledger(self).load(key))

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        return tagged("insert_many", (list(writes),), self.stage.ledger(self).insert_many(writes))

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        return tagged("swap_many", (list(pairs),), self.stage.ledger(self).swap_many(pairs))

    def changed(self, _: str, seconds: float, __: float, /) -> Steps[None]:
        yield Sleep(seconds)  # nobody tells of changes here

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        return self.stage.ledger(self).select(selection, after, limit)

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        return self.stage.ledger(self).delete(seen)

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        return self.stage.ledger(self).purge(limit, after)


def check_outbox(store: StagedStore) -> Steps[None]:
    """Check that the ledger can keep messages (:data:`onceward.stores.capabilities.OUTBOX`)."""
    return OUTBOX.needed(store.stage.ledger(store))()


def join(store: StagedStore, connection: object) -> "StagedSession":
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`)."""
    return StagedSession(TRANSACTION.needed(store.stage.ledger(store))(connection), store.stage)


class StagedSession:
    """A caller's connection whose exchanges go through the prompter: those with the ledger, and the COMMIT."""

    def __init__(self, session: Session, stage: "Stage") -> None:
        self._session = session
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def commit(self) -> Steps[Record | None]:
        return tagged("commit", (), self._session.commit())

    def exchange(self, request: object) -> object:
        if type(request) is not Ask:  # a ROLLBACK is the server's own when a worker has died
            return self._session.exchange(request)
        if self._stage.prompter is None:
            return self._session.exchange(request.request)
        return self._stage.prompter.exchange(request, self._session, IN_TRANSACTION)

    async def exchange_async(self, request: object) -> object:
        if type(request) is not Ask:
            return await self._session.exchange_async(request)
        if self._stage.prompter is None:
            return await self._session.exchange_async(request.request)
        return await self._stage.prompter.exchange_async(request, self._session, IN_TRANSACTION)
