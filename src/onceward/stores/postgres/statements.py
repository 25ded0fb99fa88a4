"""The statements of the verbs. Each is one round trip, and reads the server's clock once.

All begin with the CTE ``c``: the time, and how long to wait for a lock. ``set_config(…, true)`` lasts until the end of the
transaction, which without BEGIN is this statement. PostgreSQL looks at ``lock_timeout`` when a wait begins, so it acts here,
also behind PgBouncer. Every write joins ``c``, so it is evaluated first.

An insert reads before it writes. A duplicate then writes nothing: ``ON CONFLICT DO UPDATE`` would flush the log each time.
The insert of a batch also takes what is free. For one key, the function in claiming.py does so. Inserts and swaps are functions
there; the statements here are for who cannot call them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceward.stores.sql import rules
from onceward.stores.sql.columns import COLUMNS, FIELDS, KNOWN, VERSION

FIRST: Final = (
    "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, "
    "set_config('lock_timeout', coalesce($1::text, current_setting('lock_timeout')), true) AS patience)"
)


CHANNEL: Final = "onceward"  # on which the hash of a key is told when its claim ends


def waited(key: str) -> str:
    """Return the number that stands for a key among advisory locks and notifications."""
    return f"hashtextextended({key}, 7162831505713)"


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
    Parameter("steps", "text"),
    Parameter("unsent", "text"),
    Parameter("due", "float8"),
    Parameter("origin", "text"),
    Parameter("input", "text"),
    Parameter("history", "text"),
    Parameter("trace", "text"),
)
SEEN: Final = (Parameter("seen_owner", "text"), Parameter("seen_fence", "bigint"), Parameter("seen_beat", "bigint"))
POLICY: Final = (Parameter("on_lapse", "text"), Parameter("max_attempts", "bigint"))  # NULL takes nothing
ONE: Final = {one.name: f"${at}::{one.type}" for at, one in enumerate(WRITE + SEEN, 2)}
_EACH: Final = {one.name: f"b.{one.name}" for one in WRITE + SEEN + POLICY}


def _arguments(parameters: tuple[Parameter, ...], many: str = "") -> str:
    return ", ".join(f"${at}::{one.type}{many}" for at, one in enumerate(parameters, 2))


def _unnested(parameters: tuple[Parameter, ...]) -> str:
    return (
        f"unnest({_arguments(parameters, '[]')}) WITH ORDINALITY AS b({', '.join(one.name for one in parameters)}, n)"
    )


class Statements:
    """The statements for one ledger. Each returns rows of ``won``, the time and a record; without a record, won is NULL.

    Args:
        table: its name, quoted, with its schema if that is given.
        meta: the name of its second table, quoted.
        functions: the names of its functions, quoted: see claiming.py.
    """

    first = FIRST

    def __init__(self, table: str, meta: str, *functions: str) -> None:
        self._meta = meta
        take, takes, swap, swaps = functions
        self.take = self.calling(f"{take}({{}}, {_arguments(WRITE + POLICY)})")
        self.take_many = self.calling(f"{takes}({{}}, {_arguments(WRITE + POLICY, '[]')})")
        self.call_swap = self.calling(f"{swap}({{}}, {_arguments(WRITE + SEEN)})")
        self.call_swap_many = self.calling(f"{swaps}({{}}, {_arguments(WRITE + SEEN, '[]')})")
        new, each = self.record(ONE), self.record(_EACH)
        changes = ", ".join(f"{name} = {new[name]}" for name in FIELDS[1:])
        changes_each = ", ".join(f"{name} = {each[name]}" for name in FIELDS[1:])
        same = " AND ".join(f"t.{name} = {ONE['seen_' + name]}" for name in VERSION)
        same_each = " AND ".join(f"t.{name} = b.seen_{name}" for name in VERSION)
        of_t = ", ".join(f"t.{name}" for name in FIELDS)
        written = "clock_timestamp() AS written"  # the time after the row was written: see fences.py
        made = "SELECT true, made.* FROM made"
        # What a refused write met, or no record.
        met = (
            f"UNION ALL SELECT t.key IS NULL AND NULL, c.now, {of_t} FROM c LEFT JOIN {table} t ON t.key = $2 "
            "WHERE NOT EXISTS (SELECT FROM made)"
        )
        # A snapshot from before a wait does not show what was waited for: an insert may return nothing.
        self.insert = (
            f"{self.first}, held AS MATERIALIZED (SELECT {COLUMNS} FROM {table} WHERE key = $2), made AS (INSERT INTO {table} "
            f"({COLUMNS}) SELECT {', '.join(new.values())} FROM c WHERE NOT EXISTS (SELECT FROM held) "
            f"ON CONFLICT (key) DO NOTHING RETURNING {written}, {COLUMNS})"
            + self.answer(f"{made} UNION ALL SELECT false, c.now, held.* FROM c, held")
        )
        # What is free in the snapshot is taken if its version has not changed. ``won`` is NULL for such a row of ``held``.
        is_free = rules.is_free("held.verdict")
        self.insert_many = (
            f"{self.first}, b AS MATERIALIZED (SELECT * FROM {_unnested(WRITE + POLICY)}), "
            f"held AS MATERIALIZED (SELECT {of_t}, {self.verdict(_EACH)} AS verdict FROM c, b, {table} t "
            f"WHERE t.key = ANY ($2) AND t.key = b.key), made AS (INSERT INTO {table} AS t ({COLUMNS}) "
            f"SELECT {', '.join(self.taken(each).values())} FROM c CROSS JOIN b LEFT JOIN held ON held.key = b.key "
            f"WHERE held.key IS NULL OR {is_free} ORDER BY b.n ON CONFLICT (key) "
            f"DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in FIELDS[1:])} "
            f"WHERE (t.key, {', '.join(f't.{name}' for name in VERSION)}) IN (SELECT key, {', '.join(VERSION)} FROM held) "
            f"RETURNING {written}, {of_t})"
            + self.answer(
                f"{made} UNION ALL SELECT nullif({is_free} IS TRUE, true), c.now, {', '.join(f'held.{name}' for name in FIELDS)} "
                "FROM c, held"
            )
        )
        self.swap = (
            f"{self.first}, made AS (UPDATE {table} t SET {changes} FROM c WHERE t.key = $2 AND {same} "
            f"RETURNING {written}, {of_t})" + self.answer(f"{made} {met}")
        )
        # All rows are locked in the order of their keys before the first is written: batches cannot deadlock.
        self.swap_many = (
            f"{self.first}, b AS MATERIALIZED (SELECT * FROM {_unnested(WRITE + SEEN)}), "
            f"locked AS MATERIALIZED (SELECT t.key FROM c, b, {table} t WHERE t.key = ANY ($2) AND t.key = b.key "
            f"AND {same_each} ORDER BY t.key FOR NO KEY UPDATE OF t), "
            f"made AS (UPDATE {table} t SET {changes_each} FROM c, b, locked l "
            f"WHERE t.key = l.key AND b.key = l.key AND {same_each} RETURNING {written}, {of_t})"
            + self.answer(
                f"{made} UNION ALL SELECT false, c.now, {of_t} FROM c, {table} t "
                "WHERE t.key = ANY ($2) AND t.key NOT IN (SELECT key FROM made) UNION ALL SELECT NULL, c.now, NULL"
                f"{', NULL' * (len(FIELDS) - 1)} FROM c"
            )
        )
        loaded = f"SELECT t.key IS NULL AND NULL, c.now, {of_t} FROM c LEFT JOIN {table} t ON t.key = $2"
        self.load = self.first + self.answer(loaded)
        self.scan = (
            f"{FIRST} SELECT t.key IS NULL AND NULL, c.now, {of_t} FROM c LEFT JOIN (SELECT {COLUMNS} FROM {table} "
            "WHERE key > $2 AND key >= $3 AND ($4::text IS NULL OR key < $4) ORDER BY key LIMIT $5::bigint) t ON true ORDER BY t.key"
        )
        # The largest fence of all deleted records, for a clock that steps back. One row, written once for a whole purge.
        keep_high = (
            f"high AS (UPDATE {meta} SET value = gone.fence::text FROM (SELECT max(fence) AS fence FROM made "
            f"WHERE fence < {2**53 - 1}) gone WHERE name = 'fence' AND value::bigint < gone.fence)"
        )
        self.delete = (
            f"{FIRST}, made AS (DELETE FROM {table} t USING c WHERE t.key = $2 AND t.owner = $3 AND t.fence = $4::bigint "
            f"AND t.beat = $5::bigint RETURNING {written}, {of_t}), {keep_high} {made} {met}"
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
        return f" {rows}"

    def calling(self, function: str) -> str:
        """Return the statement that calls a function; ``{}`` stands for its first argument."""
        return f"SELECT * FROM {function.format('$1::text')}"

    def verdict(self, given: Mapping[str, str]) -> str:
        """Return the verdict about a record; NULL for a write that takes nothing, or meets a record of its own owner."""
        asked = f"{given['on_lapse']} IS NOT NULL AND t.owner <> {given['owner']}"
        return f"CASE WHEN {asked} THEN {rules.verdict('t', 'c.now', given)} END"

    def taken(self, made: Mapping[str, str]) -> dict[str, str]:
        """Return what each column becomes in an insert that can take the record ``held``."""
        taken = rules.taken("held", made, epoch="date_part('epoch', {})")
        # The fence of an insert asks for a new one.
        return {**made, **taken, "fence": f"greatest({made['fence']}, held.fence + 1)"}

    def record(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return what each column of a write becomes."""
        # A renewal never shortens a lease: it ends at ``until`` or later.
        ends = f"greatest(c.now + {given['lease']} * interval '1 second', to_timestamp({given['until']}))"
        high = f"(SELECT value::bigint + 1 FROM {self._meta} WHERE name = 'fence')"
        # The time is read anew for each row, right before it is written.
        stamped = f"greatest((date_part('epoch', clock_timestamp()) * 1000000)::bigint, {high}, 1 - {given['fence']})"
        made = {
            "fence": f"CASE WHEN {given['fence']} > 0 THEN {given['fence']} ELSE {stamped} END",
            "lease_until": ends,
            "created_at": f"coalesce(to_timestamp({given['created_at']}), c.now)",
            "expires_at": f"{ends} + {given['keep']} * interval '1 second'",
            "updated_at": "c.now",
            "due_at": f"c.now + {given['due']} * interval '1 second'",
        }
        return {name: made.get(name) or given[name] for name in FIELDS}
