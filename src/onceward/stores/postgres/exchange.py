"""Runs the requests of a PostgreSQL ledger on its connections, and makes the ledger on first use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.postgres import schema
from onceward.stores.postgres.faults import DENIED, FAULTS, NO_TABLE
from onceward.stores.postgres.queries import ManyRows, PurgeQuery, Query, RawQuery, WriteQuery
from onceward.stores.postgres.schema import ENCODING, TELLS, Names, check, make, read_meta
from onceward.stores.postgres.statements import Statements
from onceward.stores.sql.columns import is_complete
from onceward.stores.sql.exchange import PlainExchange, SqlConduit, SqlExchange
from onceward.stores.sql.refusals import SqlError

if TYPE_CHECKING:
    from onceward.observe.events import StoreRequest
    from onceward.stores.postgres.listening import Ear


class Conduit(SqlConduit[str, Sequence[object]], Protocol):
    """Connections that run statements.

    Attributes:
        ear: hears of changes of keys; None if no connection is to be had for that.
    """

    ear: "Ear | None"


class ChangeRequest(NamedTuple):
    """Waits until a key may have changed, at most so many seconds: no request to the server."""

    ear: "Ear"
    asked: tuple[str, float]


class PostgresPlain(PlainExchange[str, Sequence[object]]):
    """Runs requests without a look at the schema."""

    faults = FAULTS
    conduit: Conduit

    def asked(self, request: Query) -> tuple[str, Sequence[object]]:
        """Return the statement and its values."""
        return request.text, request.values


class PostgresExchange(SqlExchange[PostgresPlain]):
    """The I/O of a ledger.

    Args:
        conduit: the connections.
        names: of the tables.
        url: where it is, for messages; without a password.
    """

    def __init__(self, conduit: Conduit, names: Names, url: str) -> None:
        super().__init__(PostgresPlain(conduit, url), url)
        self.names = names
        self.statements = Statements(names.table, names.meta)
        self.tells = True  # whether the end of a claim can tell those who wait for its key

    def _prepared(self, request: object) -> Steps[None]:
        """Make the ledger, or what it lacks."""
        del request
        self.tells = TELLS in (yield from prepared(self.names, self.url))
        if not self.tells:
            self.statements = Statements(self.names.table, self.names.meta, tells=False)

    def _needs_ledger(self, request: object) -> bool:
        """Return whether the ledger must be there for a request."""
        return type(request) is not RawQuery

    def _purging(self, limit: int) -> Steps[int]:
        """Delete expired records, the longest expired first, and return how many."""
        gone: int = yield PurgeQuery("purge", self.statements.purge, (limit,))
        return gone

    def _claimed(self, request: object) -> int:
        """Return how many keys a request claims."""
        if type(request) is WriteQuery and request.kind == "insert":
            return 1
        return request.count if type(request) is ManyRows and request.action == "insert_many" else 0

    def exchange(self, request: object) -> object:
        """Run one request, blocking."""
        if type(request) is ChangeRequest:
            return request.ear.wait(*request.asked)
        return super().exchange(request)

    async def exchange_async(self, request: object) -> object:
        """Run one request."""
        if type(request) is ChangeRequest:
            return await request.ear.wait_async(*request.asked)
        return await super().exchange_async(request)

    def told_of(self, request: object, reply: object, seconds: float) -> Sequence["StoreRequest"]:
        """Return the events of a request. Waiting is none."""
        return () if type(request) is ChangeRequest else super().told_of(request, reply, seconds)


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
    if not is_complete(meta, schema.MINOR):
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
    return meta
