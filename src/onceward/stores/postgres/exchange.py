"""Runs the requests of a PostgreSQL ledger on its connections, and makes the ledger on first use."""

import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from onceward.core.drivers import Steps, drive, drive_async
from onceward.errors import StoreError
from onceward.stores.observed import Observed
from onceward.stores.postgres.faults import ANEW, DENIED, NO_TABLE, Broken, SqlError, SqlRefusal, refused, unreachable
from onceward.stores.postgres.queries import InsertQuery, ManyRows, PurgeQuery, Query, RawQuery, Row
from onceward.stores.postgres.schema import CLAIM, ENCODING, Names, check, is_complete, make, make_claim, read_meta
from onceward.stores.postgres.statements import Statements

PURGE_EVERY, PURGE_LIMIT = 100, 250  # purge up to 250 rows after every 100 keys that were asked for
_TRIES: Final = 5  # of a statement that the isolation level or a deadlock refused


class Conduit(Protocol):
    """Connections that run statements. Both raise SqlRefusal, Broken, or ValueError for a text that cannot be kept.

    Attributes:
        timeout: seconds for one statement.
    """

    timeout: float

    def run(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""

    async def run_async(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """As :meth:`run`, for a coroutine."""

    def patient(self, seconds: float) -> "Conduit":
        """Return connections with another limit of time for a statement."""

    def close(self) -> None:
        """Close what was opened here; the next use opens it again."""


class PostgresExchange(Observed):
    """The I/O of a ledger.

    Args:
        conduit: the connections.
        names: of the tables.
        url: where it is, for messages; without a password.
    """

    def __init__(self, conduit: Conduit, names: Names, url: str) -> None:
        self.url = url
        self.names = names
        self.statements = Statements(names.table, names.meta, *names.functions)
        self.takes = False  # whether its functions can be called
        self.bare = Bare(conduit, url)
        self._ready = False
        self._claims = random.randrange(PURGE_EVERY)  # also processes that end early purge now and then

    def exchange(self, request: object) -> object:
        """Run one request, blocking."""
        if not self._ready and type(request) is not RawQuery:
            self._prepare(drive(prepared(self.names, self.url), self.bare), request)
        reply = self.bare.exchange(request)
        if self._is_purging(request):
            with contextlib.suppress(StoreError):  # the next one will
                self.bare.exchange(self._purge())
        return reply

    async def exchange_async(self, request: object) -> object:
        """Run one request."""
        if not self._ready and type(request) is not RawQuery:
            self._prepare(await drive_async(prepared(self.names, self.url), self.bare), request)
        reply = await self.bare.exchange_async(request)
        if self._is_purging(request):
            with contextlib.suppress(StoreError):
                await self.bare.exchange_async(self._purge())
        return reply

    def _prepare(self, meta: Mapping[str, str], request: object) -> None:
        self._ready, self.takes = True, CLAIM in meta
        if isinstance(request, InsertQuery):
            request.choose(takes=self.takes)

    def _is_purging(self, request: object) -> bool:
        """Tell whether it is time to purge: after so many keys that were asked for."""
        if type(request) is InsertQuery:
            self._claims += 1
        elif type(request) is ManyRows and request.action == "insert_many":
            self._claims += request.size
        return self._claims >= PURGE_EVERY

    def _purge(self) -> Query:
        self._claims = 0
        return PurgeQuery("purge", self.statements.purge, (PURGE_LIMIT,))

    def close(self) -> None:
        """Close the connections."""
        self.bare.conduit.close()

    def action(self, request: object) -> str:
        """Return what a request does."""
        assert isinstance(request, Query)
        return request.action


class Bare:
    """Runs requests without a look at the schema."""

    def __init__(self, conduit: Conduit, url: str) -> None:
        self.conduit = conduit
        self._url = url

    def exchange(self, request: object) -> Any:
        """Run one request, blocking."""
        assert isinstance(request, Query)
        tries = 0
        while True:
            try:
                return request.reply(self._for(request).run(request.text, request.values))
            except (SqlRefusal, Broken, ValueError) as error:
                tries += 1
                if not (tries < _TRIES and _is_anew(error)):
                    raise self._translated(error) from error

    async def exchange_async(self, request: object) -> Any:
        """Run one request."""
        assert isinstance(request, Query)
        tries = 0
        while True:
            try:
                return request.reply(await self._for(request).run_async(request.text, request.values))
            except (SqlRefusal, Broken, ValueError) as error:
                tries += 1
                if not (tries < _TRIES and _is_anew(error)):
                    raise self._translated(error) from error

    def _for(self, request: Query) -> Conduit:
        return self.conduit if request.seconds is None else self.conduit.patient(request.seconds)

    def _translated(self, error: SqlRefusal | Broken | ValueError) -> StoreError:
        if isinstance(error, SqlRefusal):
            return refused(error.state, str(error), self._url)
        if isinstance(error, Broken):
            return unreachable(str(error), self._url)
        return StoreError(f"ledger {self._url}: {error}")


def _is_anew(error: Exception) -> bool:
    """Tell whether a new statement, which sees what was committed meanwhile, can succeed at once."""
    return isinstance(error, SqlRefusal) and error.state in ANEW


def prepared(names: Names, url: str) -> Steps[dict[str, str]]:
    """Make the ledger, or what it lacks, and return what it says of itself.

    Raises:
        StoreError: its schema is of another version, or this role may not make it.
    """
    try:
        meta = dict((yield RawQuery(read_meta(names))))
    except SqlError as error:
        if error.state not in NO_TABLE:
            raise
        meta = dict((yield RawQuery(ENCODING)))
    check(meta, url)
    if not is_complete(meta):
        try:
            yield RawQuery(make(names))
        except SqlError as error:
            if error.state != DENIED:
                raise
            what = "migrate" if "version" in meta else "init"
            raise StoreError(
                f"ledger {url}: this role may not make what is missing ({error}). Let the tables' owner run "
                f"`onceward {what}` once"
            ) from error
        meta = dict((yield RawQuery(read_meta(names))))
    if CLAIM not in meta:
        try:
            yield RawQuery(make_claim(names))
        except SqlError as error:  # another was faster; or this role may not, and inserts take nothing
            if error.transient:
                raise
        meta = dict((yield RawQuery(read_meta(names))))
    return meta
