"""The facts about a PostgreSQL server and the ledger in it, for doctor."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.stores.inspection import Finding
from onceward.stores.lanes.refusals import SqlError
from onceward.stores.postgres import schema
from onceward.stores.postgres.cursors import NO_TABLE
from onceward.stores.postgres.queries import RawQuery
from onceward.stores.postgres.schema import CAN_TELL
from onceward.stores.postgres.statements import TELLING
from onceward.stores.sql.inspection import SOON, clock_findings, columns_in, differences, off_by

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_WAL: Final = "postgresql.org/docs/current/runtime-config-wal.html"
_FAILOVER: Final = "postgresql.org/docs/current/warm-standby.html"
_VACUUM: Final = "postgresql.org/docs/current/routine-vacuuming.html"
_OLDEST: Final = 130000
_BLOAT: Final = 100_000  # dead rows

_SETTINGS: Final = (
    "SELECT current_setting('server_version_num')::bigint, current_setting('fsync') = 'on', "
    "current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'), "
    "current_setting('synchronous_standby_names') <> '', pg_is_in_recovery(), "
    "current_setting('default_transaction_isolation'), current_setting('autovacuum') = 'on', "
    "(SELECT count(*) FROM pg_stat_replication), date_part('epoch', clock_timestamp())"
)
_DEAD: Final = (
    "SELECT n_live_tup, n_dead_tup, coalesce((SELECT true FROM pg_class WHERE oid = relid "
    "AND 'autovacuum_enabled=false' = ANY (reloptions)), false) FROM pg_stat_all_tables WHERE relid = to_regclass($1::text)"
)
# The rows that expire last were written last, and an index has them in that order; those that wait for a person stay out.
_AHEAD: Final = (
    "SELECT date_part('epoch', max(updated_at) - clock_timestamp()) FROM (SELECT updated_at FROM {table} "
    f"WHERE expires_at < now() + interval '{SOON:.0f} s' ORDER BY expires_at DESC LIMIT 100) newest"
)


_COLUMNS: Final = (
    "SELECT attname::text, atttypid::regtype::text FROM pg_attribute WHERE attrelid = to_regclass($1::text) "
    "AND attnum > 0 AND NOT attisdropped"
)
_INDEXES: Final = (
    "SELECT c.relname::text FROM pg_index JOIN pg_class c ON c.oid = indexrelid "
    "WHERE indrelid = to_regclass($1::text) AND indisvalid"
)


class Server(NamedTuple):
    """A PostgreSQL server, as a session of the ledger sees it.

    Attributes:
        off: seconds by which the server's clock is ahead of this host's, at least; negative if it is behind.
        ahead: seconds by which the newest write is ahead of the server's clock; None if there is none.
        live: rows of the ledger, about; None if there is no ledger.
        dead: rows that no vacuum has removed, about.
        unvacuumed: whether autovacuum is off for the ledger.
        tells: whether this role can tell those who wait for a key.
        differs: what of the table is not as this version needs it.
    """

    version: int
    fsync: bool
    full_pages: bool
    commits: str
    synchronous: bool
    standby: bool
    isolation: str
    autovacuum: bool
    replicas: int
    off: float = 0.0
    ahead: float | None = None
    live: int | None = None
    dead: int = 0
    unvacuumed: bool = False
    tells: bool = True
    differs: tuple[Finding, ...] = ()

    @property
    def is_local(self) -> bool:
        return False

    def findings(self) -> Iterator[Finding]:
        major = self.version // 10000
        if self.version < _OLDEST:
            says = f"PostgreSQL {major} is older than 13"
            yield Finding("error", "version", says, "no test of this ledger covers it", "upgrade the server")
        else:
            yield Finding("ok", "version", f"PostgreSQL {major}")
        if self.standby:
            yield Finding(
                "error",
                "server",
                "this server is a standby, or is still recovering",
                "it takes no writes, so no handler runs",
                "give the address of the primary, or several with target_session_attrs=read-write",
                _FAILOVER,
            )
        yield from self._of_crashes()
        if self.isolation != "read committed":
            yield Finding(
                "warning",
                "isolation",
                f"default_transaction_isolation is {self.isolation!r}",
                "the ledger is as safe, but two claims of one key at once cost more requests",
                "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the workers' role",
            )
        yield from clock_findings(self.off, self.ahead, "standbys")
        yield from self._of_churn()
        yield from self.differs
        if not self.tells:
            yield Finding(
                "warning",
                "waiters",
                "this role may not call pg_notify, or the functions of advisory locks",
                "a call that waits for a busy key is not told of its end: it looks every now and then",
                f"GRANT EXECUTE ON FUNCTION {', '.join(TELLING)} to the workers' role",
            )

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

    def _of_churn(self) -> Iterator[Finding]:
        if not self.autovacuum or self.unvacuumed:
            where = "for the ledger's table" if self.autovacuum else "on this server"
            why = "each message leaves dead rows, so the table grows without end"
            yield Finding("warning", "autovacuum", f"autovacuum is off {where}", why, "switch it on", _VACUUM)
        elif self.live is not None and self.dead > max(_BLOAT, self.live):
            yield Finding(
                "warning",
                "autovacuum",
                f"{self.dead} dead rows beside {self.live} live ones",
                "claims read past them and get slower",
                "look for transactions that stay open (pg_stat_activity.xact_start), and give autovacuum more room",
                _VACUUM,
            )


def inspect(store: "PostgresStore") -> Server:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    sent = time.time()
    ((*settings, now),) = store.exchange(RawQuery(_SETTINGS))
    off = off_by(now, sent)
    server = Server(*settings)._replace(off=off)
    try:
        ((ahead,),) = store.exchange(RawQuery(_AHEAD.format(table=store.names.table)))
    except SqlError as error:
        if error.state not in NO_TABLE:
            raise
        return server  # it is made on first use
    rows = store.exchange(RawQuery(_DEAD, store.names.table))
    live, dead, unvacuumed = rows[0] if rows else (0, 0, False)
    ((tells,),) = store.exchange(RawQuery(f"SELECT {CAN_TELL}"))
    return server._replace(
        ahead=ahead, live=live, dead=dead, unvacuumed=unvacuumed, tells=tells, differs=_differences(store)
    )


def _differences(store: "PostgresStore") -> tuple[Finding, ...]:
    names = store.names
    types = columns_in(schema.schema(names)[0])
    zoned = {name: kind.replace("timestamptz", "timestamp with time zone") for name, kind in types.items()}
    columns = dict(store.exchange(RawQuery(_COLUMNS, names.table)))
    there = [row[0] for row in store.exchange(RawQuery(_INDEXES, names.table))]
    indexes = (f"{names.plain}_{end}" for end in ("expiry", "open", "due", "origin"))
    return tuple(differences(zoned, columns, indexes, there))
