"""The schema of a PostgreSQL ledger. It changes by adding, so that an earlier version's code works on the same table."""

from collections.abc import Mapping
from typing import Final

from onceward.errors import StoreError
from onceward.stores.postgres.statements import TELLING
from onceward.stores.sql.columns import MEANINGS, check_name, check_version
from onceward.stores.sql.finding import having
from onceward.stores.survey import UNFINISHED

VERSION: Final = 1  # code that does not know it refuses the ledger
MINOR: Final = 3  # counts what was added since; the ledger calls it its layout
ADDED: Final[dict[str, str]] = {  # columns that a ledger of a lower minor may lack
    "steps": "text",
    "unsent": "text",
    "due_at": "timestamptz",
    "origin": "text",
    "input": "text",
    "history": "text",
    "trace": "text",
}
_LOCK: Final = 7162831505713  # a number of our own, for all ledgers of a database
_ENDS: Final = ("_meta", "_expiry", "_pkey", "_open", "_due", "_origin")  # what belongs to a ledger ends with these
# A hash of the root of an origin (core/origin.py). Keys come from others, and an index refuses what is longer than 2.7 KB.
ROOT: Final = """hashtextextended(split_part({}, '"parent":"', 1), 0)"""
CAN_TELL: Final = " AND ".join(f"has_function_privilege('{name}', 'EXECUTE')" for name in TELLING)
_ENCODINGS: Final = frozenset({"UTF8", "SQL_ASCII"})  # in which a server keeps every text
TELLS: Final = "tells"  # what a ledger says of itself if this role can tell those who wait for a key
ENCODING: Final = "SELECT 'encoding', current_setting('server_encoding')"


class Names:
    """The names of a ledger's tables, quoted."""

    def __init__(self, table: str, schema: str | None) -> None:
        for what, name in (("table", table), ("schema", schema)):
            if name is not None:
                check_name(what, name)
        if table.endswith(_ENDS):
            raise ValueError(
                f"table={table!r}: choose another end; a ledger's tables and indexes can end with {', '.join(_ENDS)}"
            )
        place = "" if schema is None else f'"{schema}".'
        self.schema = schema
        self.plain = table
        self.table = f'{place}"{table}"'
        self.meta = f'{place}"{table}_meta"'

    def hint(self, _: str) -> str:
        """Return nothing: PostgreSQL finds the index by itself."""
        return ""


def schema(names: Names) -> list[str]:
    """Return the statements that make a ledger. All can be run again."""
    table, meta = names.table, names.meta
    # Bytewise order: a scan by prefix uses the index, and all hosts sort the keys of a batch the same way. Rows change often
    # and soon expire, so dead ones are removed early.
    return [
        f"""CREATE TABLE IF NOT EXISTS {table} (
    key text COLLATE "C" PRIMARY KEY,
    status text NOT NULL,
    owner text NOT NULL,
    fence bigint NOT NULL,
    beat bigint NOT NULL,
    lease_until timestamptz NOT NULL,
    attempts bigint NOT NULL,
    fingerprint text,
    result text,
    error text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    updated_at timestamptz,
    worker text,
    needs text,
    {", ".join(f"{name} {kind}" for name, kind in ADDED.items())}
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)""",
        *(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in ADDED.items()),
        f"CREATE TABLE IF NOT EXISTS {meta} (name text PRIMARY KEY, value text NOT NULL)",
        # The largest fence of all deleted records, for a clock that steps back.
        f"INSERT INTO {meta} VALUES ('version', '{VERSION}'), ('fence', '0') ON CONFLICT (name) DO NOTHING",
        (
            f"INSERT INTO {meta} AS m VALUES ('layout', '{MINOR}') ON CONFLICT (name) "
            "DO UPDATE SET value = excluded.value WHERE m.value::bigint < excluded.value::bigint"
        ),
    ]


def indexes(names: Names) -> dict[str, str]:
    """Return the statements, by names, that make the indexes of what expires, of unsent messages, of chains, and of what is not completed."""
    places = {
        "expiry": "(expires_at) WHERE expires_at IS NOT NULL",
        "due": "(due_at, key) WHERE due_at IS NOT NULL",
        "origin": f"(({ROOT.format('origin')}), key) WHERE origin IS NOT NULL",
        "open": f"(key) WHERE {having(UNFINISHED)}",
    }
    return {
        name: f'CREATE INDEX IF NOT EXISTS "{names.plain}_{name}" ON {names.table} {place}'
        for name, place in places.items()
    }


def comments(names: Names) -> list[str]:
    """Return the statements that say in the database what each column is."""
    return [f"COMMENT ON COLUMN {names.table}.{column} IS '{text}'" for column, text in MEANINGS.items()]


def make(names: Names) -> str:
    """Return one statement that makes what is missing, in one transaction. Others who do the same wait for it, for three seconds.

    A longer wait would outlive its client, and hold up all who want the table after it. What is there is not made again: ALTER TABLE
    and CREATE INDEX lock a table also if they have nothing to do, and its workers would wait, or deadlock.
    """
    place, table = names.schema, f"to_regclass('{names.table}')"
    # IF NOT EXISTS would ask for the right to create schemas even if it is there.
    create = "" if place is None else f"IF to_regnamespace('{place}') IS NULL THEN CREATE SCHEMA \"{place}\"; END IF; "
    first, *rest = schema(names)
    index = (
        f"pg_index JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = {table} AND c.relname = '{names.plain}_{{}}'"
    )
    column = f"pg_attribute WHERE attrelid = {table} AND attname = '{{}}' AND NOT attisdropped"
    alters, others = rest[: len(ADDED)], rest[len(ADDED) :]
    parts = [*zip(map(column.format, ADDED), alters, strict=True)]
    parts += [(index.format(name), statement) for name, statement in indexes(names).items()]
    # A query sees what others made while this one waited.
    body = "; ".join(f"IF NOT EXISTS (SELECT FROM {there}) THEN {statement}; END IF" for there, statement in parts)
    return (
        f"DO $onceward$ DECLARE new boolean; BEGIN PERFORM set_config('lock_timeout', '3s', true), pg_advisory_xact_lock({_LOCK}); {create}"
        f"new := NOT EXISTS (SELECT FROM pg_class WHERE oid = {table}); {first}; {body}; {'; '.join(others)}; "
        f"IF new THEN {'; '.join(comments(names))}; END IF; END $onceward$"
    )


def read_meta(names: Names) -> str:
    """Return the statement that reads what a ledger says of itself."""
    return f"SELECT name, value FROM {names.meta} UNION ALL {ENCODING} UNION ALL SELECT '{TELLS}', '' WHERE {CAN_TELL}"


def check(meta: Mapping[str, str], url: str) -> None:
    """Raise StoreError if the ledger's schema is of another version, or its database cannot keep every text."""
    if meta["encoding"] not in _ENCODINGS:
        raise StoreError(
            f"ledger {url}: its database has the encoding {meta['encoding']}, which cannot keep every key and result. Give one with "
            "UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
    check_version(meta, VERSION, url)
