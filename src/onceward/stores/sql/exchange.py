"""What the I/O of SQL ledgers has in common: connections that run statements, and the requests that need no look at the schema."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import SystemRandom
from typing import Any, Final, Generic, Protocol, TypeVar

from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.register import KeyLocked
from onceward.errors import StoreError
from onceward.stores.contract import MORE, Purged
from onceward.stores.observed import Observed
from onceward.stores.sql.queries import SqlQuery, Ts
from onceward.stores.sql.refusals import Broken, ServerErrors, SqlRefusal, lost

PURGE_EVERY, PURGE_LIMIT = 100, 250  # purge up to 250 rows after every 100 keys that were asked for
_TRIES: Final = 5  # of a statement that the server refused because of another transaction


class SqlConduit(Protocol[*Ts]):
    """Connections that run statements. Both raise SqlRefusal, Broken, or ValueError for a text that cannot be kept.

    Attributes:
        timeout: seconds for one request.
    """

    timeout: float

    def run(self, request: Any, asked: Callable[[Any], tuple[*Ts]]) -> Any:
        """Do one request, and return its reply. ``asked`` returns the statements of a request."""

    async def run_async(self, request: Any, asked: Callable[[Any], tuple[*Ts]]) -> Any:
        """As :meth:`run`, for a coroutine."""

    def patient(self, seconds: float) -> "SqlConduit[*Ts]":
        """Return connections with another limit of time for a request."""

    def close(self) -> None:
        """Close what was opened here; the next use opens it again."""


class PlainExchange(ABC, Generic[*Ts]):
    """Runs requests without a look at the schema."""

    faults: ServerErrors

    def __init__(self, conduit: SqlConduit[*Ts], url: str) -> None:
        self.conduit = conduit
        self._url = url

    @abstractmethod
    def asked(self, request: Any) -> tuple[*Ts]:
        """Return what the connections take for a request."""

    def exchange(self, request: object) -> Any:
        """Run one request, blocking."""
        query: SqlQuery = request  # type: ignore[assignment]  # an isinstance() of an ABC costs a microsecond
        tries = 0
        while True:
            try:
                return self._for(query).run(query, self.asked)
            except (SqlRefusal, Broken, ValueError) as error:
                tries += 1
                if not (tries < _TRIES and self._is_anew(error)):
                    raise self._translated(error) from error

    async def exchange_async(self, request: object) -> Any:
        """Run one request."""
        query: SqlQuery = request  # type: ignore[assignment]  # as above
        tries = 0
        while True:
            try:
                return await self._for(query).run_async(query, self.asked)
            except (SqlRefusal, Broken, ValueError) as error:
                tries += 1
                if not (tries < _TRIES and self._is_anew(error)):
                    raise self._translated(error) from error

    def _for(self, request: SqlQuery) -> SqlConduit[*Ts]:
        return self.conduit if request.seconds is None else self.conduit.patient(request.seconds)

    def _is_anew(self, error: Exception) -> bool:
        """Return whether the same request can succeed at once."""
        return isinstance(error, SqlRefusal) and error.state in self.faults.anew

    def _translated(self, error: SqlRefusal | Broken | ValueError) -> StoreError:
        if isinstance(error, SqlRefusal):
            refused = self.faults.refused(error.state, str(error), self._url)
            if isinstance(refused, KeyLocked):
                refused.brief = True
            return refused
        if isinstance(error, Broken):
            return lost(str(error), self._url)
        return StoreError(f"ledger {self._url}: {error}")


P = TypeVar("P", bound=PlainExchange[*tuple[Any, ...]])


class SqlExchange(Observed, ABC, Generic[P]):
    """The I/O of a ledger, which makes it on first use and purges it now and then.

    Args:
        plain: runs its requests.
        url: where it is, for messages; without a password.
    """

    def __init__(self, plain: P, url: str) -> None:
        self.url = url
        self.plain = plain
        self._ready = False
        self._claims = SystemRandom().randrange(PURGE_EVERY)  # also processes that end early purge now and then

    @abstractmethod
    def _prepared(self, request: object) -> Steps[None]:
        """Make the ledger, or what it lacks, before this request, the first one."""

    @abstractmethod
    def _needs_ledger(self, request: object) -> bool:
        """Return whether the ledger must be there for a request."""

    @abstractmethod
    def _purging(self, limit: int) -> Steps[int]:
        """Delete expired records, the longest expired first, and return how many."""

    @abstractmethod
    def _claimed(self, request: object) -> int:
        """Return how many keys a request claims."""

    def exchange(self, request: object) -> object:
        """Run one request, blocking."""
        if not self._ready and self._needs_ledger(request):
            drive(self._prepared(request), self.plain)
            self._ready = True
        reply: object = self.plain.exchange(request)
        if self._is_purging(request):
            with contextlib.suppress(StoreError):  # the next one will
                drive(self._purging(PURGE_LIMIT), self.plain)
        return reply

    async def exchange_async(self, request: object) -> object:
        """Run one request."""
        if not self._ready and self._needs_ledger(request):
            await drive_async(self._prepared(request), self.plain)
            self._ready = True
        reply: object = await self.plain.exchange_async(request)
        if self._is_purging(request):
            with contextlib.suppress(StoreError):
                await drive_async(self._purging(PURGE_LIMIT), self.plain)
        return reply

    def _is_purging(self, request: object) -> bool:
        """Return whether it is time to purge: after so many keys that were asked for."""
        self._claims += self._claimed(request)
        if self._claims < PURGE_EVERY:
            return False
        self._claims = 0
        return True

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete expired records, the longest expired first."""
        gone = yield from self._purging(limit)
        return Purged(gone, MORE if gone == limit else None)

    def close(self) -> None:
        """Close the connections."""
        self.plain.conduit.close()

    def action(self, request: object) -> str:
        """Return what a request does."""
        assert isinstance(request, SqlQuery)
        return request.action
