"""The verbs' statements as they run in a transaction of the caller, and what they tell besides.

The wait for a lock ends with the statement, or the caller's own statements would give up as early. The transaction's id tells
whether it is still the one that made the claim. Times are numbers, whatever the caller's connection makes of a timestamptz.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from onceward.core.record import Reply, Write
from onceward.stores.postgres.queries import Query
from onceward.stores.postgres.statements import ONE, READ, SEEN, WRITE, Statements, told
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.columns import COLUMNS, FIELDS, VERSION

Asked = tuple[str, Sequence[object]]  # a statement and its values
_PARAMETER: Final = re.compile(r"\$(\d+)")
# Which schema the ledger's tables are in: the caller's search path can be another one.
PLACE: Final = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)"
# Two sessions that cannot both have this lock are in the same database of the same server.
TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock($1::bigint)"
_XID: Final = "pg_current_xact_id_if_assigned()::text"
XID: Final = f"SELECT {_XID}"


_KEPT: Final = frozenset({"owner", "fence", "attempts", "fingerprint", "created_at", "worker"})  # by a completion
_CHANGES: Final = [name for name in FIELDS if name != "key" and name not in _KEPT]
_SENT: Final = [one.name for one in (*WRITE, *SEEN) if one.name not in _KEPT]
_ALL: Final = [one.name for one in (*WRITE, *SEEN)]
NOT_OURS: Final = "2201E"  # the logarithm of zero, by which a completion fails if the claim is not its transaction's


class InsideStatements(Statements):
    """Statements whose rows have two more values: the transaction's id, and one to ignore.

    Attributes:
        claim: claims a key that is absent. It is half as long as ``insert``, which PostgreSQL plans anew each time.
        complete: swaps the record that this transaction holds, or fails. So the COMMIT can be sent with it.
    """

    # OFFSET 0 keeps the planner from reading the setting after it was changed.
    first = (
        "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, was, set_config('lock_timeout', coalesce($1::text, was), true) "
        "AS patience FROM (SELECT current_setting('lock_timeout') AS was OFFSET 0) w)"
    )

    def __init__(self, table: str, meta: str, *, tells: bool = True) -> None:
        super().__init__(table, meta, tells=tells)
        new = self.record(ONE)
        self.claim = self.first + self.answer(
            f"INSERT INTO {table} ({COLUMNS}) SELECT {', '.join(new.values())} FROM c ON CONFLICT (key) DO NOTHING "
            f"RETURNING true, clock_timestamp(), {COLUMNS}"
        )
        types = {one.name: one.type for one in (*WRITE, *SEEN)}
        given = dict.fromkeys(types, "NULL") | {name: f"${at}::{types[name]}" for at, name in enumerate(_SENT, 1)}
        made = self.record(given)
        same = " AND ".join(f"t.{name} = {given['seen_' + name]}" for name in VERSION)
        telling = told(given["status"], given["key"]) if tells else "NULL"
        self.complete = (
            f"WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now), a AS (UPDATE {table} t SET "
            f"{', '.join(f'{name} = {made[name]}' for name in _CHANGES)} FROM c WHERE t.key = {given['key']} AND {same} "
            f"AND {_XID} = ${len(_SENT) + 1}::text RETURNING {', '.join(f't.{name}' for name in FIELDS)}, {telling} AS told) "
            f"SELECT true, date_part('epoch', c.now), {READ}, ln((SELECT count(*) FROM a)::float8) FROM c LEFT JOIN a ON true"
        )

    def answer(self, rows: str) -> str:
        """Return the end of a verb's statement. What is selected last happens after the write."""
        return (
            f", a(won, now, {COLUMNS}) AS MATERIALIZED ({rows}) SELECT a.won, date_part('epoch', a.now), {READ}, "
            f"{_XID}, set_config('lock_timeout', c.was, true) FROM c LEFT JOIN a ON true"
        )


class Inside:
    """The statements of one ledger in the caller's transaction."""

    def __init__(self, store: PostgresStore, schema: str) -> None:
        place = '"{}"."{}"'
        quoted, table = schema.replace('"', '""'), store.names.plain
        moved = InsideStatements(place.format(quoted, table), place.format(quoted, f"{table}_meta"), tells=store.tells)
        theirs = store.statements
        verbs = ("insert", "insert_many", "swap", "swap_many", "load")
        self._texts: dict[str, str] = {getattr(theirs, verb): getattr(moved, verb) for verb in verbs}
        self.claim, self._complete = moved.claim, moved.complete

    def text(self, text: str) -> str:
        """Return the store's statement as it runs inside."""
        return self._texts.get(text, text)

    def completion(self, swap: Query, xid: str | None) -> Asked:
        """Return the statement of a swap that completes the claim which the transaction ``xid`` holds, and its values."""
        given = dict(zip(_ALL, swap.values[1:], strict=True))
        return self._complete, (*(given[name] for name in _SENT), xid)

    def expected(self, swap: Query) -> Reply:
        """Return the reply that a completion is to have, but for its times, which are the server's."""
        given: dict[str, Any] = {kind.name: value for kind, value in zip(WRITE, swap.values[1:], strict=False)}
        return Reply(True, Write(**given).at(0.0), 0.0)


def named(text: str) -> str:
    """Return a statement with the parameters of psycopg's cursors: ``%(p1)s``."""
    return _PARAMETER.sub(r"%(p\1)s", text)
