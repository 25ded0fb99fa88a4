"""The store's statements as they run in a transaction of the caller, and what they tell besides.

The wait for a lock ends with the statement, or the caller's own statements would give up as early. The transaction's id tells
whether it is still the one that made the claim. Times are numbers, whatever the caller's connection makes of a timestamptz.
"""

import re
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from onceward.core.record import Record
from onceward.stores.postgres.schema import Names
from onceward.stores.postgres.statements import Statements
from onceward.stores.postgres.store import PostgresStore

_TIMES: Final = frozenset({"lease_until", "created_at", "expires_at", "updated_at"})
_READ: Final = ", ".join(f"date_part('epoch', a.{name})" if name in _TIMES else f"a.{name}" for name in Record._fields)
_PARAMETER: Final = re.compile(r"\$(\d+)")
_C: Final = re.compile(r"WITH c AS MATERIALIZED \(SELECT clock_timestamp\(\) AS now, (.+?) AS patience\)")
# Which schema the ledger's tables are in: the caller's search path can be another one.
PLACE: Final = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)"
# Two sessions that cannot both have this lock are in the same database of the same server.
TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock($1::bigint)"
XID: Final = "SELECT pg_current_xact_id_if_assigned()::text"


class Inside:
    """The statements of one ledger in the caller's transaction.

    Attributes:
        same: driver connections that are known to be to the ledger's database.
    """

    def __init__(self, store: PostgresStore, schema: str) -> None:
        quoted = schema.replace('"', '""')
        names = Names(store.names.plain, None)
        moved = Statements(f'"{quoted}".{names.table}', f'"{quoted}".{names.meta}')
        plain = store.statements
        self._texts = {
            getattr(plain, name): _inside(getattr(moved, name)) for name in ("insert", "swap", "swap_many", "load")
        }
        self.same: WeakSet[object] = WeakSet()

    def text(self, text: str) -> str:
        """Return the store's statement as it runs inside."""
        return self._texts.get(text, text)


KNOWN: "WeakKeyDictionary[PostgresStore, Inside]" = WeakKeyDictionary()


def named(text: str) -> str:
    """Return a statement with the parameters of psycopg's cursors: ``%(p1)s``."""
    return _PARAMETER.sub(r"%(p\1)s", text)


def _inside(text: str) -> str:
    """Return a statement whose rows have the transaction's id at their end, and a last value to ignore."""
    text, found = _C.subn(
        r"WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, was, \1 AS patience "
        r"FROM (SELECT current_setting('lock_timeout') AS was OFFSET 0) w)",
        text,
        count=1,
    )
    ctes, select, rest = text.rpartition(") SELECT true, c.now, made.*")
    if not select:
        ctes, select, rest = text.rpartition(") SELECT t.key IS NULL AND NULL")
    assert found, text
    assert select, text
    select = select.removeprefix(") ")
    columns = ", ".join(Record._fields)
    return (
        f"{ctes}), a(won, now, {columns}) AS MATERIALIZED ({select}{rest}) "
        f"SELECT a.won, date_part('epoch', a.now), {_READ}, pg_current_xact_id_if_assigned()::text, "
        "set_config('lock_timeout', c.was, true) FROM c LEFT JOIN a ON true"
    )
