"""The verbs' statements as they run in a transaction of the caller, and what they tell besides.

The wait for a lock ends with the statement, or the caller's own statements would give up as early. The transaction's id tells
whether it is still the one that made the claim. Times are numbers, whatever the caller's connection makes of a timestamptz.
"""

import re
from functools import lru_cache
from typing import Any, Final

from onceward.core.record import Reply, Write
from onceward.stores.postgres.queries import Query
from onceward.stores.postgres.statements import ONE, READ, WRITE, Statements, told
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.columns import COLUMNS, FIELDS, VERSION

_PARAMETER: Final = re.compile(r"\$(\d+)")
# Which schema the ledger's tables are in: the caller's search path can be another one.
PLACE: Final = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)"
# Two sessions that cannot both have this lock are in the same database of the same server.
TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock($1::bigint)"
_XID: Final = "pg_current_xact_id_if_assigned()::text"
XID: Final = f"SELECT {_XID}"


class InsideStatements(Statements):
    """Statements whose rows have two more values: the transaction's id, and one to ignore.

    Attributes:
        claim: claims a key that is absent. It is half as long as ``insert``, which PostgreSQL plans anew each time.
        complete: swaps the record that this transaction holds. It is shorter than ``swap`` for the same reason.
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
        same = " AND ".join(f"t.{name} = {ONE['seen_' + name]}" for name in VERSION)
        telling = told(ONE["status"], ONE["key"]) if tells else "NULL"
        self.complete = self.first + self.answer(
            f"UPDATE {table} t SET {', '.join(f'{name} = {new[name]}' for name in FIELDS[1:])} FROM c WHERE t.key = $2 AND {same} "
            f"RETURNING ({telling}) IS DISTINCT FROM 'never', clock_timestamp(), {', '.join(f't.{name}' for name in FIELDS)}"
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
        self.claim, self.complete = moved.claim, moved.complete

    def text(self, text: str) -> str:
        """Return the store's statement as it runs inside."""
        return self._texts.get(text, text)

    def expected(self, swap: Query) -> Reply:
        """Return the reply that a completion is to have, but for its times, which are the server's."""
        given: dict[str, Any] = {kind.name: value for kind, value in zip(WRITE, swap.values[1:], strict=False)}
        return Reply(True, Write(**given).at(0.0), 0.0)


@lru_cache(100)
def named(text: str) -> str:
    """Return a statement with the parameters of psycopg's cursors: ``%(p1)s``."""
    return _PARAMETER.sub(r"%(p\1)s", text)
