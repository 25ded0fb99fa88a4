"""Deleting expired records of a MySQL ledger."""

from onceward.core.drivers import Steps
from onceward.stores.mysql.queries import RowsQuery
from onceward.stores.mysql.schema import MysqlNames
from onceward.stores.mysql.statements import STARTED, MysqlStatements, literal
from onceward.stores.sql.columns import KNOWN
from onceward.stores.sql.queries import Row


class DeleteManyQuery(RowsQuery):
    """Delete those of these records that are still expired. Before that, note the largest of their fences."""

    __slots__ = ("_fence", "_keys")
    blocks = True

    def __init__(self, found: list[Row]) -> None:
        super().__init__(action="purge")
        self._keys, self._fence = [row[0] for row in found], max(row[1] for row in found)

    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements."""
        keys, table = ", ".join(map(literal, self._keys)), statements.names.table
        return [
            statements.keep_high(self._fence),
            f"DELETE FROM {table} WHERE `key` IN ({keys}) AND expires_at <= {STARTED} AND {KNOWN}",
            "SELECT ROW_COUNT()",
        ]


def purging(names: MysqlNames, limit: int) -> Steps[int]:
    """Delete expired records, the longest expired first, and return how many. Those that somebody works on are left."""
    found = yield RowsQuery(
        f"SELECT `key`, fence FROM {names.table} WHERE expires_at <= {STARTED} AND {KNOWN} ORDER BY expires_at LIMIT {limit} "
        "FOR UPDATE SKIP LOCKED",
        action="purge",
    )
    if not found:
        return 0
    rows = yield DeleteManyQuery(list(found))
    ((gone,),) = rows
    return int(gone)
