"""The facts about a MySQL or MariaDB server and the ledger in it, for doctor."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.stores.inspection import Finding
from onceward.stores.lanes.refusals import SqlError
from onceward.stores.mysql import schema
from onceward.stores.mysql.lane import NO_TABLE
from onceward.stores.mysql.queries import RowsQuery
from onceward.stores.mysql.statements import NOW, STARTED
from onceward.stores.sql.inspection import SOON, clock_findings, differences, off_by

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore

_CRASHES: Final = "mariadb.com/kb/en/innodb-system-variables"
_REPLICAS: Final = "mariadb.com/kb/en/semisynchronous-replication"
_READ: Final = (
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "read_only",
    "super_read_only",
    "max_allowed_packet",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
    "wsrep_on",
)
_WAITS: Final = "SELECT SLEEP(0.01), SYSDATE(6) > NOW(6)"
# The rows that expire last were written last, and an index has them in that order; those that wait for a person stay out.
_AHEAD: Final = (
    f"SELECT max(updated_at) - {NOW} FROM (SELECT updated_at FROM {{table}} WHERE expires_at < {STARTED} + {SOON * 1e6:.0f} "
    "ORDER BY expires_at DESC LIMIT 100) newest"
)


class MysqlServer(NamedTuple):
    """A server, as a session of the ledger sees it.

    Attributes:
        settings: its variables, by their names; what the server has not is missing.
        sysdate: whether SYSDATE is the time at which it is read.
        off: seconds by which the server's clock is ahead of this host's, at least; negative if it is behind.
        ahead: seconds by which the newest write is ahead of the server's clock; None if there is none.
        max_result: bytes of a result that the ledger takes.
        differs: what of the table is not as this version needs it.
    """

    settings: Mapping[str, str]
    sysdate: bool
    off: float
    ahead: float | None
    max_result: int
    differs: tuple[Finding, ...] = ()

    @property
    def is_local(self) -> bool:
        return False

    def findings(self) -> Iterator[Finding]:
        if self._is("read_only") or self._is("super_read_only"):
            yield Finding(
                "error",
                "server",
                "this server is read-only, as replicas are",
                "it takes no writes of workers, so no handler runs",
                "give the address of the primary",
            )
        yield from self._of_crashes()
        yield from self._of_failover()
        yield from self._of_clocks()
        yield from self.differs
        if self.settings.get("binlog_format") == "STATEMENT" and self._is("log_bin"):
            yield Finding(
                "error",
                "binlog_format",
                "binlog_format is STATEMENT",
                "the server refuses the ledger's writes, because a replica would make others of them",
                "set binlog_format = ROW",
            )
        packet = int(self.settings.get("max_allowed_packet", "0"))
        if packet and packet < 4 * self.max_result:
            yield Finding(
                "warning",
                "max_allowed_packet",
                f"max_allowed_packet is {packet} bytes",
                "a large result may not fit into a statement, and its key then completes without a result",
                f"set max_allowed_packet to {16 * 2**20} or more, or lower max_result",
            )

    def _of_crashes(self) -> Iterator[Finding]:
        flush = self.settings.get("innodb_flush_log_at_trx_commit")
        doubles = self._is("innodb_doublewrite") or self.settings.get("innodb_doublewrite") == "DETECT_AND_RECOVER"
        if flush != "1":
            yield Finding(
                "error",
                "durability",
                f"innodb_flush_log_at_trx_commit is {flush}",
                "a crash of the host forgets the last second, and completed effects run again",
                "set innodb_flush_log_at_trx_commit = 1",
                _CRASHES,
            )
        elif doubles:
            yield Finding("ok", "durability", "a commit is on disk when it is answered")
        if not doubles:
            yield Finding(
                "warning",
                "innodb_doublewrite",
                "innodb_doublewrite is off",
                "a crash of the host can damage pages, unless its file system writes them whole",
                "switch it on",
                _CRASHES,
            )

    def _of_failover(self) -> Iterator[Finding]:
        if self._is("wsrep_on"):
            yield Finding(
                "warning",
                "Galera",
                "this server is a node of a Galera cluster",
                "locks are of one node: two nodes find out only at their COMMIT that both have claimed a key. Nothing here is tested",
                "let all workers write to one node, and read docs/reference/mysql.md",
            )
        if not self._is("log_bin"):
            return
        if self.settings.get("sync_binlog") != "1":
            yield Finding(
                "warning",
                "sync_binlog",
                f"sync_binlog is {self.settings.get('sync_binlog')}",
                "after a crash of the host, its replicas can have lost or gained the last writes",
                "set sync_binlog = 1",
                _REPLICAS,
            )
        if not (self._is("rpl_semi_sync_master_enabled") or self._is("rpl_semi_sync_source_enabled")):
            yield Finding(
                "warning",
                "failover",
                "replicas, if there are any, follow asynchronously",
                "a failover forgets the last writes: a completed effect can run again, a running claim can be made twice",
                "use semi-synchronous replication, or accept that loss",
                _REPLICAS,
            )

    def _of_clocks(self) -> Iterator[Finding]:
        if not self.sysdate:
            yield Finding(
                "warning",
                "sysdate",
                "the server runs with --sysdate-is-now",
                "a claim that has waited for a lock judges leases by the time before it waited",
                "start the server without it",
            )
        yield from clock_findings(self.off, self.ahead, "replicas")

    def _is(self, name: str) -> bool:
        return self.settings.get(name) in {"ON", "1"}


def inspect(store: "MysqlStore") -> MysqlServer:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    names = ", ".join(f"'{name}'" for name in _READ)
    rows = store.exchange(RowsQuery(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    ((_, waits),) = store.exchange(RowsQuery(_WAITS))
    sent = time.time()
    ((micros,),) = store.exchange(RowsQuery(f"SELECT {NOW}"))
    off = off_by(micros / 1e6, sent)
    ahead, differs = None, tuple[Finding, ...]()
    try:
        ((lead,),) = store.exchange(RowsQuery(_AHEAD.format(table=store.names.table)))
        ahead = None if lead is None else float(lead) / 1e6
        differs = _differences(store)
    except SqlError as error:
        if error.state != NO_TABLE:  # it is made on first use
            raise
    return MysqlServer(
        {str(name).lower(): str(value) for name, value in rows}, waits == 1, off, ahead, store.max_result, differs
    )


def _differences(store: "MysqlStore") -> tuple[Finding, ...]:
    names = store.names
    columns = {row[0]: _word(row[1]) for row in store.exchange(RowsQuery(f"SHOW COLUMNS FROM {names.table}"))}
    there = {row[2] for row in store.exchange(RowsQuery(f"SHOW INDEX FROM {names.table}"))}
    types = {name: _word(kind) for name, kind in schema.COLUMNS.items()}
    return tuple(differences(types, columns, (f"{names.plain}_{name}" for name in schema.INDEXES), there))


def _word(kind: object) -> str:
    """Return the first word of a type: servers add the width of numbers, or do not."""
    return str(kind).partition("(")[0].partition(" ")[0]
