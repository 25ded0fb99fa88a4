"""The facts about a PostgreSQL server and the ledger in it, for doctor."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.stores.inspection import Finding
from onceward.stores.postgres.queries import RawQuery
from onceward.stores.sql.inspection import clock_findings, off_by

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_WAL: Final = "postgresql.org/docs/current/runtime-config-wal.html"
_FAILOVER: Final = "postgresql.org/docs/current/warm-standby.html"

_SETTINGS: Final = (
    "SELECT current_setting('fsync') = 'on', "
    "current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'), "
    "current_setting('synchronous_standby_names') <> '', "
    "(SELECT count(*) FROM pg_stat_replication), date_part('epoch', clock_timestamp())"
)


class Server(NamedTuple):
    """A PostgreSQL server, as a session of the ledger sees it.

    Attributes:
        off: seconds by which the server's clock is ahead of this host's, at least; negative if it is behind.
    """

    fsync: bool
    full_pages: bool
    commits: str
    synchronous: bool
    replicas: int
    off: float = 0.0

    @property
    def is_local(self) -> bool:
        return False

    def findings(self) -> Iterator[Finding]:
        yield from self._of_crashes()
        yield from clock_findings(self.off, "standbys")

    def _of_crashes(self) -> Iterator[Finding]:
        for on, name in ((self.fsync, "fsync"), (self.full_pages, "full_page_writes")):
            if not on:
                why = "a crash of the host can lose or damage records, and effects run again"
                yield Finding("error", name, f"{name} is off", why, f"set {name} = on", _WAL)
        if self.commits == "off":
            yield Finding(
                "error",
                "synchronous_commit",
                "synchronous_commit is off",
                "a crash of the server forgets the last moments, and completed effects run again",
                "ALTER ROLE … SET synchronous_commit = 'on' for the workers' role",
                _WAL,
            )
        elif self.replicas and (not self.synchronous or self.commits == "local"):
            yield Finding(
                "warning",
                "failover",
                f"{self.replicas} standby(s) follow asynchronously",
                "a failover forgets the last writes: a completed effect can run again, a running claim can be made twice",
                "name a standby in synchronous_standby_names, or accept that loss",
                _FAILOVER,
            )
        elif self.fsync and self.full_pages:
            yield Finding(
                "ok", "durability", f"a commit is on disk when it is answered (synchronous_commit={self.commits})"
            )


def inspect(store: "PostgresStore") -> Server:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    sent = time.time()
    ((*settings, now),) = store.exchange(RawQuery(_SETTINGS))
    return Server(*settings)._replace(off=off_by(now, sent))
