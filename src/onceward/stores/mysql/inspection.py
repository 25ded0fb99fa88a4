"""The facts about a MySQL or MariaDB server and the ledger in it, for doctor."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.stores.inspection import Finding
from onceward.stores.mysql.queries import RowsQuery
from onceward.stores.mysql.statements import NOW
from onceward.stores.sql.inspection import clock_findings, off_by

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore

_CRASHES: Final = "mariadb.com/kb/en/innodb-system-variables"
_REPLICAS: Final = "mariadb.com/kb/en/semisynchronous-replication"
_READ: Final = (
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "log_bin",
    "sync_binlog",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
    "wsrep_on",
)
_WAITS: Final = "SELECT SLEEP(0.01), SYSDATE(6) > NOW(6)"


class MysqlServer(NamedTuple):
    """A server, as a session of the ledger sees it.

    Attributes:
        settings: its variables, by their names; what the server has not is missing.
        sysdate: whether SYSDATE is the time at which it is read.
        off: seconds by which the server's clock is ahead of this host's, at least; negative if it is behind.
    """

    settings: Mapping[str, str]
    sysdate: bool
    off: float

    @property
    def is_local(self) -> bool:
        return False

    def findings(self) -> Iterator[Finding]:
        yield from self._of_crashes()
        yield from self._of_failover()
        yield from self._of_clocks()

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
        yield from clock_findings(self.off, "replicas")

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
    return MysqlServer({str(name).lower(): str(value) for name, value in rows}, waits == 1, off)
