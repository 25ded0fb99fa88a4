"""The verbs' statements as they run in a transaction of the caller, and what they tell besides.

The wait for a lock ends with the statement, or the caller's own statements would give up as early. The transaction's id tells
whether it is still the one that made the claim. Times are numbers, whatever the caller's connection makes of a timestamptz.
"""

import re
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from onceward.stores.postgres.statements import Statements
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.columns import COLUMNS, FIELDS

_TIMES: Final = frozenset({"lease_until", "created_at", "expires_at", "updated_at"})
_READ: Final = ", ".join(f"date_part('epoch', a.{name})" if name in _TIMES else f"a.{name}" for name in FIELDS)
_PARAMETER: Final = re.compile(r"\$(\d+)")
# Which schema the ledger's tables are in: the caller's search path can be another one.
PLACE: Final = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)"
# Two sessions that cannot both have this lock are in the same database of the same server.
TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock($1::bigint)"
XID: Final = "SELECT pg_current_xact_id_if_assigned()::text"


class InsideStatements(Statements):
    """Statements whose rows have two more values: the transaction's id, and one to ignore."""

    # OFFSET 0 keeps the planner from reading the setting after it was changed.
    first = (
        "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, was, set_config('lock_timeout', coalesce($1::text, was), true) "
        "AS patience FROM (SELECT current_setting('lock_timeout') AS was OFFSET 0) w)"
    )

    def calling(self, function: str) -> str:
        """Return the statement that calls a function; ``{}`` stands for its first argument."""
        return self.first + self.answer(f"SELECT f.* FROM c, LATERAL {function.format('c.patience')} f")

    def answer(self, rows: str) -> str:
        """Return the end of a verb's statement. What is selected last happens after the write."""
        return (
            f", a(won, now, {COLUMNS}) AS MATERIALIZED ({rows}) SELECT a.won, date_part('epoch', a.now), {_READ}, "
            "pg_current_xact_id_if_assigned()::text, set_config('lock_timeout', c.was, true) FROM c LEFT JOIN a ON true"
        )


class Inside:
    """The statements of one ledger in the caller's transaction.

    Attributes:
        same: driver connections that are known to be to the ledger's database.
    """

    def __init__(self, store: PostgresStore, schema: str) -> None:
        place = '"{}"."{}"'
        quoted, table = schema.replace('"', '""'), store.names.plain
        names = (table, f"{table}_meta", store.names.plain_claim)
        moved = InsideStatements(*(place.format(quoted, name) for name in names))
        verbs = ("claim", "insert", "swap", "swap_many", "load")
        self._texts: dict[str, str] = {getattr(store.statements, verb): getattr(moved, verb) for verb in verbs}
        self.same: WeakSet[object] = WeakSet()

    def text(self, text: str) -> str:
        """Return the store's statement as it runs inside."""
        return self._texts.get(text, text)


KNOWN: "WeakKeyDictionary[PostgresStore, Inside]" = WeakKeyDictionary()


def named(text: str) -> str:
    """Return a statement with the parameters of psycopg's cursors: ``%(p1)s``."""
    return _PARAMETER.sub(r"%(p\1)s", text)
