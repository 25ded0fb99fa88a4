"""The verbs' statements as they run in a transaction of the caller, and what they tell besides.

The wait for a lock ends with the statement, or the caller's own statements would give up as early. The transaction's id tells
whether it is still the one that made the claim. Times are numbers, whatever the caller's connection makes of a timestamptz.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress, count, repeat
from operator import attrgetter, is_not, itemgetter, ne
from typing import Final

from onceward.core.record import Write
from onceward.stores.postgres.queries import WriteQuery
from onceward.stores.postgres.statements import READ, SEEN, WRITE, Parameter, Statements, notification
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.columns import COLUMNS, FIELDS, VERSION

_PARAMETER: Final = re.compile(r"\$(\d+)")
# Which schema the ledger's tables are in: the caller's search path can be another one.
PLACE: Final = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)"
# Two sessions that cannot both have this lock are in the same database of the same server.
TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock($1::bigint)"
_XID: Final = "pg_current_xact_id_if_assigned()::text"
XID: Final = f"SELECT {_XID}"
# Of a row that was just written: the time after that, its fence, and the time by which its others are reckoned.
MADE: Final = f"date_part('epoch', clock_timestamp()), fence, date_part('epoch', updated_at), {_XID}"
# A claim must not wait long for a lock, and the caller's statements as long as before. So a claim keeps the caller's setting under a
# name of ours. What its RETURNING does happens after the write; if it writes no row, the next statement puts the setting back.
_SETTING: Final = "onceward.lock_timeout"
_HURRY: Final = f"set_config('{_SETTING}', current_setting('lock_timeout'), true) IS NULL OR set_config('lock_timeout', {{}}, true) IS NULL"
_REST: Final = f"set_config('{_SETTING}', left(set_config('lock_timeout', {{}}, true), 0), true)"
_DURATIONS: Final = {"keep": "expires_at", "due": "due_at"}  # durations, and the columns that they become
_ALWAYS: Final = frozenset({"lease_until", "updated_at"})
# The values of a write, as a query has them. Of a completion, the places of those that it always names, and of those that it names
# if they change.
_PARAMETERS: Final = (Parameter("patience", "text"), *WRITE, *SEEN)
_ALWAYS_NAMED: Final = frozenset({"key", "status", "lease", "until", *(kind.name for kind in SEEN)})
_NEEDED: Final = tuple(at for at, kind in enumerate(_PARAMETERS) if kind.name in _ALWAYS_NAMED)
_OTHERS: Final = tuple(at for at in range(1, len(_PARAMETERS)) if at not in _NEEDED)
_AFTER: Final = itemgetter(*_OTHERS)
_BEFORE: Final = attrgetter(*(_DURATIONS.get(_PARAMETERS[at].name, _PARAMETERS[at].name) for at in _OTHERS))
Statement = tuple[str, Sequence[object]]


class InsideStatements(Statements):
    """Statements whose rows have two more values: the transaction's id, and one to ignore."""

    # OFFSET 0 keeps the planner from reading the setting after it was changed.
    first = (
        "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now, was, set_config('lock_timeout', coalesce($1::text, was), true) "
        f"AS patience FROM (SELECT coalesce(nullif(current_setting('{_SETTING}', true), ''), current_setting('lock_timeout')) AS was "
        "OFFSET 0) w)"
    )

    def answer(self, rows: str) -> str:
        """Return the end of a verb's statement. What is selected last happens after the write."""
        return (
            f", a(won, now, {COLUMNS}) AS MATERIALIZED ({rows}) SELECT a.won, date_part('epoch', a.now), {READ}, "
            f"{_XID}, {_REST.format('c.was')} FROM c LEFT JOIN a ON true"
        )


class Inside:
    """The statements of one ledger in the caller's transaction.

    Most transactions need two only: the claim of a key that is absent, and its completion. They name the columns that they
    write, and return what the server alone knows: :data:`MADE`. That takes half the time of the store's own statements.
    """

    def __init__(self, store: PostgresStore, schema: str) -> None:
        place = '"{}"."{}"'
        quoted, table = schema.replace('"', '""'), store.names.plain
        self._table, meta = place.format(quoted, table), place.format(quoted, f"{table}_meta")
        self._statements = statements = InsideStatements(self._table, meta, tells=store.tells)
        theirs = store.statements
        verbs = ("insert", "insert_many", "swap", "swap_many", "load")
        self._texts: dict[str, str] = {getattr(theirs, verb): getattr(statements, verb) for verb in verbs}
        self._tells = store.tells
        self._short: dict[tuple[int, ...], str] = {}  # by the values that they take

    def text(self, text: str) -> str:
        """Return the store's statement as it runs inside."""
        return self._texts.get(text, text)

    def claiming(self, query: WriteQuery) -> Statement:
        """Return the claim of a key that is absent. Without a row, the key is there."""
        values = query.values
        return self._shortest(self._claim, tuple(compress(count(), map(is_not, values, repeat(None)))), values)

    def completing(self, query: WriteQuery) -> Statement:
        """Return the swap of the record that this transaction holds. Without a row, it does not hold it."""
        values = query.values
        changed = compress(_OTHERS, map(ne, _AFTER(values), _BEFORE(query.seen)))
        return self._shortest(self._complete, (*_NEEDED, *changed), values)

    def _shortest(
        self, make: Callable[[dict[str, str]], str], places: tuple[int, ...], values: Sequence[object]
    ) -> Statement:
        """Return a statement of the values at these places."""
        text = self._short.get(places)
        if text is None:
            kinds = [_PARAMETERS[place] for place in places]
            text = self._short[places] = make({kind.name: f"${at}::{kind.type}" for at, kind in enumerate(kinds, 1)})
        return text, [values[place] for place in places]

    def _columns(self, values: dict[str, str]) -> dict[str, str]:
        """Return what the columns become that depend on ``values``."""
        columns = self._statements.record(dict.fromkeys(Write._fields, "NULL") | values, "statement_timestamp()")
        sources = {column: source for source, column in _DURATIONS.items()}
        return {name: columns[name] for name in FIELDS if name in _ALWAYS or sources.get(name, name) in values}

    def _claim(self, values: dict[str, str]) -> str:
        columns = self._columns(values) | {"created_at": "statement_timestamp()"}
        rest = _REST.format(f"current_setting('{_SETTING}')")
        columns["status"] = f"CASE WHEN {_HURRY.format(values['patience'])} THEN NULL ELSE {values['status']} END"
        return (
            f"INSERT INTO {self._table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())}) "
            f"ON CONFLICT (key) DO NOTHING RETURNING {MADE}, {rest}"
        )

    def _complete(self, values: dict[str, str]) -> str:
        key, *changed = self._columns(values).items()
        same = " AND ".join(f"{name} = {values['seen_' + name]}" for name in VERSION)
        telling = notification(values["status"], values["key"]) if self._tells else "NULL"
        return (
            f"UPDATE {self._table} SET {', '.join(f'{name} = {value}' for name, value in changed)} "
            f"WHERE key = {key[1]} AND {same} RETURNING {MADE}, {telling}"
        )


@lru_cache(100)
def pyformat(text: str) -> str:
    """Return a statement with the parameters of psycopg's cursors: ``%(p1)s``."""
    return _PARAMETER.sub(r"%(p\1)s", text)
