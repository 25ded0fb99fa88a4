"""The ledger in PostgreSQL: a table beside the users' own data."""

from collections.abc import Mapping

from onceward.core.drivers import Sleep, Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.selections import Selection
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.postgres.exchange import ChangeRequest, Conduit, PostgresExchange
from onceward.stores.postgres.faults import CANCELED
from onceward.stores.postgres.finding import select
from onceward.stores.postgres.queries import (
    OneRow,
    Query,
    WriteQuery,
)
from onceward.stores.postgres.schema import Names
from onceward.stores.sql.refusals import SqlError
from onceward.stores.sql.verbs import SqlVerbs


class PostgresStore(PostgresExchange, SqlVerbs):
    """A ledger in a PostgreSQL database, 13 or newer."""

    resolution = 0.0
    poll = 0.05  # seconds; a waiter's look is a read by key
    max_result = 256 * 1024
    capabilities: Mapping[str, str] = {
        "survey": "onceward.stores.postgres.survey:survey",
        "found": "onceward.stores.postgres.provision:found",
        "inspect": "onceward.stores.postgres.inspection:inspect",
        "migrate": "onceward.stores.postgres.provision:migrate",
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.postgres.provision:outbox",
        "provision": "onceward.stores.postgres.provision:provision",
        "template": "onceward.stores.postgres.provision:template",
        "transaction": "onceward.stores.postgres.join:join",
    }

    def __init__(self, conduit: Conduit, names: Names, url: str) -> None:
        PostgresExchange.__init__(self, conduit, names, url)
        SqlVerbs.__init__(self)

    def _writing(self, write: Write, fence: int, seen: Record | None) -> Query:
        """Return the insert of one key, or the swap of a record."""
        ours = self.statements
        texts = (ours.insert, ours.insert_many) if seen is None else (ours.swap, ours.swap_many)
        return WriteQuery(texts, write, fence, seen)

    def _deleting(self, seen: Record) -> Query:
        """Return the deletion of one record."""
        return OneRow("delete", self.statements.delete, (seen.key, *seen.version))

    def _stops_all(self, error: StoreError) -> bool:
        """Return whether one key of a batch can have stopped the whole statement, also by the session's ``statement_timeout``."""
        return super()._stops_all(error) or (isinstance(error, SqlError) and error.state == CANCELED)

    def load(self, key: str) -> Steps[Reply]:
        """Read one record."""
        reply: Reply = yield OneRow("load", self.statements.load, (key,))
        return reply

    def changed(self, key: str, seconds: float, most: float, /) -> Steps[None]:
        """Wait until told that the claim on a key has ended, where a connection can listen."""
        ear = self.plain.conduit.ear
        if ear is None or not self.tells or seconds < self.poll / 2 or not (yield ChangeRequest(ear, (key, most))):
            yield Sleep(seconds)

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        """Read records in the order of their keys."""
        return select(self.names, selection, after, limit)
