"""The statements of the verbs. Each is one round trip, and reads the server's clock once.

All begin with the CTE ``c``: the time, and how long to wait for a lock. ``set_config(…, true)`` lasts until the end of the
transaction, which without BEGIN is this statement. PostgreSQL looks at ``lock_timeout`` when a wait begins, so it acts here,
also behind PgBouncer. Every write joins ``c``, so it is evaluated first.

An insert reads before it writes. A duplicate then writes nothing: ``ON CONFLICT DO UPDATE`` would flush the log each time.
"""

from typing import Final, NamedTuple

from onceward.stores.sql.columns import COLUMNS, FIELDS, KNOWN, TIMES, VERSION


# Times are timestamptz, for people with psql. A microsecond of this century is exact in a float, both ways.
def _read(table: str = "") -> str:
    """Return the columns of a record for a SELECT or RETURNING."""
    return ", ".join(
        f"date_part('epoch', {table}{name}) AS {name}" if name in TIMES else f"{table}{name}" for name in FIELDS
    )


_C = (
    "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, "
    "set_config('lock_timeout', coalesce($1::text, current_setting('lock_timeout')), true) AS patience)"
)
_NOW = "date_part('epoch', c.now)"
_ROWS = ", ".join(f"r.{name}" for name in FIELDS)


class Parameter(NamedTuple):
    """A value of a write: its field in :class:`onceward.core.record.Write`, and its type in PostgreSQL."""

    name: str
    type: str


WRITE: Final = (
    Parameter("key", "text"),
    Parameter("status", "text"),
    Parameter("owner", "text"),
    Parameter("fence", "bigint"),
    Parameter("beat", "bigint"),
    Parameter("attempts", "bigint"),
    Parameter("fingerprint", "text"),
    Parameter("result", "text"),
    Parameter("error", "text"),
    Parameter("created_at", "float8"),
    Parameter("lease", "float8"),
    Parameter("keep", "float8"),
    Parameter("until", "float8"),
    Parameter("worker", "text"),
    Parameter("needs", "text"),
)
SEEN: Final = (Parameter("seen_owner", "text"), Parameter("seen_fence", "bigint"), Parameter("seen_beat", "bigint"))


def _values(kinds: tuple[Parameter, ...]) -> str:
    return "SELECT " + ", ".join(f"${at}::{kind.type} AS {kind.name}" for at, kind in enumerate(kinds, 2))


def _arrays(kinds: tuple[Parameter, ...]) -> str:
    arrays = ", ".join(f"${at}::{kind.type}[]" for at, kind in enumerate(kinds, 2))
    names = ", ".join(kind.name for kind in kinds)
    return f"SELECT b.* FROM unnest({arrays}) WITH ORDINALITY AS b({names}, n)"


class Statements:
    """The statements for one ledger.

    Args:
        table: its name, quoted, with its schema if that is given.
        meta: the name of its second table, quoted.
    """

    def __init__(self, table: str, meta: str) -> None:
        self.table, self.meta = table, meta
        high = f"(SELECT value::bigint + 1 FROM {meta} WHERE name = 'fence')"
        stamped = f"greatest((date_part('epoch', c.now) * 1000000)::bigint, {high})"
        made = {
            "fence": f"CASE WHEN b.fence = 0 THEN {stamped} ELSE b.fence END",
            "lease_until": "e.lease_until",
            "created_at": "coalesce(to_timestamp(b.created_at), c.now)",
            "expires_at": "e.lease_until + b.keep * interval '1 second'",
            "updated_at": "c.now",
        }
        # A renewal never shortens a lease: it ends at ``until`` or later.
        ends = (
            "CROSS JOIN LATERAL (SELECT greatest(c.now + b.lease * interval '1 second', to_timestamp(b.until)) "
            "AS lease_until) e"
        )
        record = ", ".join(made.get(name, f"b.{name}") for name in FIELDS)
        changes = ", ".join(f"{name} = {made.get(name, f'b.{name}')}" for name in FIELDS[1:])
        same = " AND ".join(f"t.{name} = b.seen_{name}" for name in VERSION)
        read = f"SELECT {_read()} FROM {table}"
        answer = f"SELECT r.won, {_NOW}, {_ROWS} FROM c LEFT JOIN ("
        lost = "UNION ALL SELECT false, held.* FROM held) r ON true"

        def insert(bids: str, keys: str, order: str) -> str:
            return (
                f"{_C}, held AS MATERIALIZED ({read} WHERE key {keys}), "
                f"made AS (INSERT INTO {table} ({COLUMNS}) SELECT {record} FROM c CROSS JOIN ({bids}) b {ends} "
                f"WHERE NOT EXISTS (SELECT FROM held WHERE held.key = b.key) {order} "
                f"ON CONFLICT (key) DO NOTHING RETURNING {_read()}) "
                f"{answer} SELECT true AS won, made.* FROM made {lost}"
            )

        # A duplicate's values need no look at the second table: the subquery in ``stamped`` runs only for a new row.
        self.insert = insert(_values(WRITE), "= $2", "")
        self.insert_many = insert(_arrays(WRITE), "= ANY ($2)", "ORDER BY b.n")
        self.swap = (
            f"{_C}, made AS (UPDATE {table} t SET {changes} FROM c CROSS JOIN ({_values(WRITE + SEEN)}) b {ends} "
            f"WHERE t.key = $2 AND {same} RETURNING {_read('t.')}), "
            f"held AS ({read} WHERE key = $2 AND NOT EXISTS (SELECT FROM made)) "
            f"{answer} SELECT true AS won, made.* FROM made {lost}"
        )
        # All rows are locked in the order of their keys before the first is written: batches cannot deadlock.
        self.swap_many = (
            f"{_C}, b AS MATERIALIZED ({_arrays(WRITE + SEEN)}), "
            f"locked AS MATERIALIZED (SELECT t.key FROM c CROSS JOIN {table} t JOIN b ON b.key = t.key "
            f"WHERE t.key = ANY ($2) AND {same} ORDER BY t.key FOR NO KEY UPDATE OF t), "
            f"made AS (UPDATE {table} t SET {changes} FROM c CROSS JOIN b {ends} "
            f"WHERE t.key = ANY ($2) AND t.key = b.key AND {same} AND t.key IN (SELECT key FROM locked) "
            f"RETURNING {_read('t.')}), "
            f"held AS ({read} WHERE key = ANY ($2) AND key NOT IN (SELECT key FROM made)) "
            f"{answer} SELECT true AS won, made.* FROM made {lost}"
        )
        self.load = f"{_C} {answer} SELECT false AS won, held.* FROM ({read} WHERE key = $2) held) r ON true"
        self.scan = (
            f"{_C} {answer} SELECT false AS won, held.* FROM ({read} WHERE key > $2 AND key >= $3 AND key < $4 "
            "ORDER BY key LIMIT $5::bigint) held) r ON true ORDER BY r.key"
        )
        # The largest fence of all deleted records, for a clock that steps back. OneRow row, written once for a whole purge.
        keep_high = (
            f"high AS (UPDATE {meta} SET value = gone.fence::text FROM (SELECT max(fence) AS fence FROM made "
            f"WHERE fence < {2**53 - 1}) gone WHERE name = 'fence' AND value::bigint < gone.fence)"
        )
        self.delete = (
            f"{_C}, made AS (DELETE FROM {table} t USING c WHERE t.key = $2 AND t.owner = $3 AND t.fence = $4::bigint "
            f"AND t.beat = $5::bigint RETURNING {_read('t.')}), {keep_high}, "
            f"held AS ({read} WHERE key = $2 AND NOT EXISTS (SELECT FROM made)) "
            f"{answer} SELECT true AS won, made.* FROM made {lost}"
        )
        # Rows that somebody works on are left for the next purge.
        self.purge = (
            f"{_C}, old AS MATERIALIZED (SELECT key FROM {table} WHERE expires_at <= (SELECT now FROM c) AND {KNOWN} "
            "ORDER BY expires_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED), "
            f"made AS (DELETE FROM {table} t WHERE key IN (SELECT key FROM old) RETURNING fence), {keep_high} "
            "SELECT count(*) FROM made"
        )
