"""The statements of the verbs. Each is one round trip, and reads the server's clock once.

All begin with the CTE ``c``: the time, and how long to wait for a lock. ``set_config(…, true)`` lasts until the end of the
transaction, which without BEGIN is this statement. PostgreSQL looks at ``lock_timeout`` when a wait begins, so it acts here,
also behind PgBouncer. Every write joins ``c``, so it is evaluated first.

An insert reads before it writes. A duplicate then writes nothing: ``ON CONFLICT DO UPDATE`` would flush the log each time.

A swap that ends a claim tells those who wait for its key (listening.py). Who waits has locked the key, so that NOTIFY, which
makes commits wait for each other, is for nobody else.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.core.record import IN_PROGRESS, Write
from onceward.stores.sql.columns import COLUMNS, FIELDS, KNOWN, TIMES, VERSION
from onceward.stores.sql.finding import OF_T

FIRST: Final = (
    "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, "
    "set_config('lock_timeout', coalesce($1::text, current_setting('lock_timeout')), true) AS patience)"
)


CHANNEL: Final = "onceward"  # on which the hash of a key is told when its claim ends
# What a role must be allowed to call to tell, as each is by default.
TELLING: Final = (
    "pg_notify(text, text)",
    "pg_try_advisory_xact_lock(bigint)",
    "pg_try_advisory_lock(bigint)",
    "pg_advisory_unlock(bigint)",
)


def lock_number(key: str) -> str:
    """Return the number that stands for a key among advisory locks and notifications."""
    return f"hashtextextended({key}, 7162831505713)"


class Parameter(NamedTuple):
    """A value of a write: its field in :class:`onceward.core.record.Write`, and its type in PostgreSQL."""

    name: str
    type: str


_NUMBERS: Final = {
    **dict.fromkeys(("fence", "beat", "attempts"), "bigint"),
    **dict.fromkeys(("created_at", "lease", "keep", "until", "due"), "float8"),
}
WRITE: Final = tuple(Parameter(name, _NUMBERS.get(name, "text")) for name in Write._fields)
SEEN: Final = (Parameter("seen_owner", "text"), Parameter("seen_fence", "bigint"), Parameter("seen_beat", "bigint"))
ONE: Final = {one.name: f"${at}::{one.type}" for at, one in enumerate(WRITE + SEEN, 2)}
_EACH: Final = {one.name: f"b.{one.name}" for one in WRITE + SEEN}


# Times are numbers, whatever a connection makes of a timestamptz.
READ: Final = ", ".join(f"date_part('epoch', a.{name})" if name in TIMES else f"a.{name}" for name in FIELDS)


def _unnested(parameters: tuple[Parameter, ...]) -> str:
    arguments = ", ".join(f"${at}::{one.type}[]" for at, one in enumerate(parameters, 2))
    return f"unnest({arguments}) WITH ORDINALITY AS b({', '.join(one.name for one in parameters)}, n)"


def notification(status: str, key: str) -> str:
    """Return the expression that tells those who wait for a key, if its write has this status and ends a claim."""
    number = lock_number(key)
    return (
        f"CASE WHEN {status} = '{IN_PROGRESS}' THEN NULL WHEN pg_try_advisory_xact_lock({number}) THEN NULL "
        f"ELSE pg_notify('{CHANNEL}', {number}::text)::text END"
    )


_NOTIFY: Final = notification(ONE["status"], ONE["key"])
# Of many keys the locks are not kept: the server has room for a few thousand.
_NOTIFY_EACH: Final = (
    f"(SELECT count(pg_notify('{CHANNEL}', h::text)::text)::text FROM (SELECT {lock_number('key')} AS h FROM made "
    f"WHERE status <> '{IN_PROGRESS}' OFFSET 0) ended WHERE NOT (pg_try_advisory_lock(h) AND pg_advisory_unlock(h)))"
)


class Statements:
    """The statements for one ledger. Each returns rows of ``won``, the time and a record; without a record, won is NULL.

    ``tells`` is whether the role can call :data:`TELLING`.
    """

    first = FIRST

    def __init__(self, table: str, meta: str, *, tells: bool = True) -> None:
        self._meta = meta
        new, each = self.record(ONE), self.record(_EACH)
        changes = ", ".join(f"{name} = {new[name]}" for name in FIELDS[1:])
        changes_each = ", ".join(f"{name} = {each[name]}" for name in FIELDS[1:])
        same = " AND ".join(f"t.{name} = {ONE['seen_' + name]}" for name in VERSION)
        same_each = " AND ".join(f"t.{name} = b.seen_{name}" for name in VERSION)
        time = "clock_timestamp() AS written"  # the time after the row was written: see sql/verbs.py
        result = f"SELECT true, written, {COLUMNS} FROM made UNION ALL"
        inserted = self.answer(f"{result} SELECT false, c.now, held.* FROM c, held")
        loaded = f"SELECT t.key IS NULL AND NULL, c.now, {OF_T} FROM c LEFT JOIN {table} t ON t.key = $2"
        # What a refused write met, or no record.
        changed = self.answer(f"{result} {loaded} WHERE NOT EXISTS (SELECT FROM made)")
        # A snapshot from before a wait does not show what was waited for: an insert may return nothing.
        self.insert = (
            f"{self.first}, held AS MATERIALIZED (SELECT {COLUMNS} FROM {table} WHERE key = $2), made AS (INSERT INTO {table} "
            f"({COLUMNS}) SELECT {', '.join(new.values())} FROM c WHERE NOT EXISTS (SELECT FROM held) "
            f"ON CONFLICT (key) DO NOTHING RETURNING {time}, {COLUMNS}){inserted}"
        )
        self.insert_many = (
            f"{self.first}, b AS MATERIALIZED (SELECT * FROM {_unnested(WRITE)}), "
            f"held AS MATERIALIZED (SELECT {OF_T} FROM c, {table} t WHERE t.key = ANY ($2)), "
            f"made AS (INSERT INTO {table} ({COLUMNS}) SELECT {', '.join(each.values())} FROM c CROSS JOIN b "
            f"WHERE b.key NOT IN (SELECT key FROM held) ORDER BY b.n ON CONFLICT (key) DO NOTHING "
            f"RETURNING {time}, {COLUMNS}){inserted}"
        )
        notify, notify_each = (_NOTIFY, _NOTIFY_EACH) if tells else ("NULL", "NULL")
        self.swap = (
            f"{self.first}, made AS (UPDATE {table} t SET {changes} FROM c WHERE t.key = $2 AND {same} "
            f"RETURNING {time}, {OF_T}, {notify} AS told){changed}"
        )
        # All rows are locked in the order of their keys before the first is written: batches cannot deadlock.
        # The last row is without a record: it has the time, and how many keys were told.
        self.swap_many = (
            f"{self.first}, b AS MATERIALIZED (SELECT * FROM {_unnested(WRITE + SEEN)}), "
            f"locked AS MATERIALIZED (SELECT t.key FROM c, b, {table} t WHERE t.key = ANY ($2) AND t.key = b.key "
            f"AND {same_each} ORDER BY t.key FOR NO KEY UPDATE OF t), "
            f"made AS (UPDATE {table} t SET {changes_each} FROM c, b, locked l "
            f"WHERE t.key = l.key AND b.key = l.key AND {same_each} RETURNING {time}, {OF_T})"
            + self.answer(
                f"{result} SELECT false, c.now, {OF_T} FROM c, {table} t "
                f"WHERE t.key = ANY ($2) AND t.key NOT IN (SELECT key FROM made) UNION ALL SELECT NULL, c.now, {notify_each}"
                f"{', NULL' * (len(FIELDS) - 1)} FROM c"
            )
        )
        self.load = self.first + self.answer(loaded)
        # The largest fence of all deleted records, for a clock that steps back. One row, written once for a whole purge.
        keep_high = (
            f"high AS (UPDATE {meta} SET value = gone.fence::text FROM (SELECT max(fence) AS fence FROM made "
            f"WHERE fence < {2**53 - 1}) gone WHERE name = 'fence' AND value::bigint < gone.fence)"
        )
        self.delete = (
            f"{FIRST}, made AS (DELETE FROM {table} t USING c WHERE t.key = $2 AND t.owner = $3 AND t.fence = $4::bigint "
            f"AND t.beat = $5::bigint RETURNING {time}, {OF_T}), {keep_high}{changed}"
        )
        # Rows that somebody works on are left for the next purge.
        self.purge = (
            f"{FIRST}, old AS MATERIALIZED (SELECT key FROM {table} WHERE expires_at <= (SELECT now FROM c) AND {KNOWN} "
            "ORDER BY expires_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED), "
            f"made AS (DELETE FROM {table} t WHERE key IN (SELECT key FROM old) RETURNING fence), {keep_high} "
            "SELECT count(*) FROM made"
        )

    def answer(self, rows: str) -> str:
        """Return the end of a verb's statement, with the SELECT of its rows."""
        return f" SELECT a.won, date_part('epoch', a.now), {READ} FROM ({rows}) a(won, now, {COLUMNS})"

    def record(self, values: Mapping[str, str], now: str = "c.now") -> dict[str, str]:
        """Return what each column of a write becomes. ``now`` is the expression of the time."""
        # A renewal never shortens a lease: it ends at ``until`` or later.
        ends = f"greatest({now} + {values['lease']} * interval '1 second', to_timestamp({values['until']}))"
        high = f"(SELECT value::bigint + 1 FROM {self._meta} WHERE name = 'fence')"
        # The time is read anew for each row, right before it is written.
        fence = f"greatest((date_part('epoch', clock_timestamp()) * 1000000)::bigint, {high}, 1 - {values['fence']})"
        columns = {
            "fence": f"CASE WHEN {values['fence']} > 0 THEN {values['fence']} ELSE {fence} END",
            "lease_until": ends,
            "created_at": f"coalesce(to_timestamp({values['created_at']}), {now})",
            "expires_at": f"{ends} + {values['keep']} * interval '1 second'",
            "updated_at": now,
            "due_at": f"{now} + {values['due']} * interval '1 second'",
        }
        return {name: columns.get(name) or values[name] for name in FIELDS}
