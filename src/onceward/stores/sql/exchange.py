"""The I/O of SQL ledgers: requests on their connections, the ledger made on first use, and a purge now and then."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import SystemRandom
from typing import Any, Final, NamedTuple

from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.record import Reply
from onceward.core.register import KeyLocked
from onceward.errors import StoreError
from onceward.stores.contract import MORE, Purged
from onceward.stores.lanes.line import LaneRequest
from onceward.stores.lanes.refusals import Broken, ServerErrors, SqlRefusal, lost
from onceward.stores.observed import Observed

PURGE_EVERY, PURGE_LIMIT = 100, 250  # purge up to 250 rows after every 100 keys that were asked for
_TRIES: Final = 5  # of a statement that the server refused because of another transaction


Row = Sequence[Any]


class SqlQuery(LaneRequest):
    """A request. Merged ones are in the order of their keys, so that batches of processes do not deadlock.

    Attributes:
        action: what it does, for events.
        is_bare: whether it needs no ledger.
        claims: how many keys it asks for.
    """

    is_bare = False
    claims = 0

    def __init__(self, action: str) -> None:
        self.action = action

    def by(self, conduit: Any) -> Any:
        """Return what runs it: the connections."""
        return conduit


class BatchReply(NamedTuple):
    """The replies of many keys, and the server's time. A key without a record is missing."""

    replies: dict[str, Reply]
    now: float


class SqlExchange(Observed, ABC):
    """The I/O of a ledger."""

    faults: ServerErrors

    def __init__(self, conduit: Any, url: str) -> None:
        self.conduit = conduit
        self.url = url
        self._ready = False
        self._claims = SystemRandom().randrange(PURGE_EVERY)  # also processes that end early purge now and then

    @abstractmethod
    def arguments(self, request: Any) -> tuple[Any, ...]:
        """Return what the connections take for a request."""

    @abstractmethod
    def prepare(self) -> Steps[bool]:
        """Make the ledger, or what it lacks, before the first request that needs it. Return whether it lacked something."""

    @abstractmethod
    def purging(self, limit: int) -> Steps[int]:
        """Delete expired records, the longest expired first, and return how many."""

    def exchange(self, request: Any) -> Any:
        if not (self._ready or request.is_bare):
            drive(self.prepare(), self)
            self._ready = True
        tries = _TRIES
        while True:
            try:
                reply: object = request.by(self.conduit).run(request, self.arguments)
                break
            except (SqlRefusal, Broken, ValueError) as error:
                tries -= 1
                self._check_anew(error, tries)
        if request.claims and self._is_purging(request.claims):
            with contextlib.suppress(StoreError):  # the next one will
                drive(self.purging(PURGE_LIMIT), self)
        return reply

    async def exchange_async(self, request: Any) -> Any:
        if not (self._ready or request.is_bare):
            await drive_async(self.prepare(), self)
            self._ready = True
        tries = _TRIES
        while True:
            try:
                reply: object = await request.by(self.conduit).run_async(request, self.arguments)
                break
            except (SqlRefusal, Broken, ValueError) as error:
                tries -= 1
                self._check_anew(error, tries)
        if request.claims and self._is_purging(request.claims):
            with contextlib.suppress(StoreError):
                await drive_async(self.purging(PURGE_LIMIT), self)
        return reply

    def _check_anew(self, error: SqlRefusal | Broken | ValueError, tries: int) -> None:
        """Raise what an error means, unless the same request can succeed at once."""
        if isinstance(error, SqlRefusal):
            if tries and error.state in self.faults.anew:
                return
            refusal = self.faults.error_of(error.state, str(error), self.url)
            if isinstance(refusal, KeyLocked):
                refusal.brief = True
            raise refusal from error
        if isinstance(error, Broken):
            raise lost(str(error), self.url) from error
        raise StoreError(f"ledger {self.url}: {error}") from error

    def _is_purging(self, claims: int) -> bool:
        """Return whether it is time to purge: after so many keys that were asked for."""
        self._claims += claims
        if self._claims < PURGE_EVERY:
            return False
        self._claims = 0
        return True

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        count = yield from self.purging(limit)
        return Purged(count, MORE if count == limit else None)

    def close(self) -> None:
        self.conduit.close()

    def action(self, request: object) -> str:
        assert isinstance(request, SqlQuery)
        return request.action
