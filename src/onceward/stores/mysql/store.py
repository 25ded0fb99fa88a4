"""The ledger in MySQL or MariaDB: a table beside the users' own data."""

from collections.abc import Mapping
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.selections import Selection
from onceward.errors import StoreError
from onceward.stores.contract import Page, Polled
from onceward.stores.mysql.exchange import MysqlConduit, MysqlExchange
from onceward.stores.mysql.finding import select
from onceward.stores.mysql.queries import (
    DeleteQuery,
    LoadQuery,
    MysqlWrite,
    size_of,
)
from onceward.stores.mysql.schema import LONGEST_KEY, MysqlNames
from onceward.stores.sql.verbs import SqlVerbs

_PACKET: Final = 768 * 1024  # characters of the texts of one statement


class MysqlStore(MysqlExchange, SqlVerbs, Polled):
    """A ledger in MySQL 8 or MariaDB 10.6, or newer."""

    resolution = 0.0
    poll = 0.05  # seconds; a waiter's look is a read by key
    max_result = 256 * 1024
    capabilities: Final[Mapping[str, str]] = {
        "survey": "onceward.stores.mysql.survey:survey",
        "found": "onceward.stores.mysql.provision:found",
        "inspect": "onceward.stores.mysql.inspection:inspect",
        "migrate": "onceward.stores.mysql.provision:migrate",
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.mysql.provision:outbox",
        "provision": "onceward.stores.mysql.provision:provision",
        "template": "onceward.stores.mysql.provision:template",
        "transaction": "onceward.stores.mysql.join:join",
    }

    def __init__(self, conduit: MysqlConduit, names: MysqlNames, url: str) -> None:
        MysqlExchange.__init__(self, conduit, names, url)
        SqlVerbs.__init__(self)

    def _writing(self, write: Write, fence: int, seen: Record | None) -> MysqlWrite:
        """Return the insert of one key, or the swap of a record."""
        return MysqlWrite(write, fence, seen)

    def _deleting(self, seen: Record) -> DeleteQuery:
        """Return the deletion of one record."""
        return DeleteQuery(seen)

    def load(self, key: str) -> Steps[Reply]:
        """Read one record."""
        reply: Reply = yield LoadQuery(key)
        return reply

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        """Read records in the order of their keys."""
        return select(self.names, selection, after, limit)

    def _too_long(self, key: str) -> StoreError | None:
        """Return the error for a key that is too long. A session without strict mode would cut it, and take it for another one."""
        if len(key) <= LONGEST_KEY:
            return None
        return StoreError(
            f"ledger {self.url}: the key has {len(key)} characters, and may have {LONGEST_KEY}: {key[:60]}…"
        )

    def _parts(self, writes: list[Write]) -> list[list[Write]]:
        """Split writes so that a statement is no longer than ``max_allowed_packet``, which can be as low as 1 MB."""
        parts: list[list[Write]] = []
        size = _PACKET
        for write in writes:
            length = size_of(write)
            if (size := size + length) > _PACKET:
                parts.append([])
                size = length
            parts[-1].append(write)
        return parts
