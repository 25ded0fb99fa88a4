"""How a record stands in each kind of ledger, from what makes the ledgers."""

import re
import sqlite3

from typer.testing import CliRunner

from generated.markdown import code, fence, table
from onceward.cli.app import command_line
from onceward.core.record import Record
from onceward.stores.dynamodb.items import Layout
from onceward.stores.sqlite.schema import SCHEMA, TABLE

_HEAD = """## Tables

A record has the same fields in every ledger: columns in SQL, attributes in DynamoDB. You can read them in the console
of the store. `onceward init --store URL` makes the tables. With `--print` it only prints their definition.

"""
_SQLITE = """
### SQLite
A new file gets these statements at its first use. Times are seconds since 1970.

"""
_POSTGRES = """
### PostgreSQL
`onceward init --print sql` prints these statements, and after them the ledger's functions and the rights of a worker.

"""
_DYNAMODB = """
### DynamoDB
`onceward init --print cloudformation` prints the table and the policies. A field without a value has no attribute.
Times are seconds of the type `N`, so the table's TTL can use `expires_at`. A long result is compressed, and has the type `B`.

"""


def part() -> str:
    """Return the section."""
    statements = _printed("postgresql://owner@db/shop", "sql")
    meanings = dict(re.findall(r"""COMMENT ON COLUMN \S+?\.(\w+) IS '(.*)';""", statements))
    made = statements[: statements.index("COMMENT ON")]
    types = [_types_of_sqlite(), dict(re.findall(r"\b(\w+) (text|bigint|timestamptz)\b", made)), _types_of_dynamodb()]
    rows = [(code(name), meanings[name], *(code(kinds[name]) for kinds in types)) for name in Record._fields]
    sqlite = "\n".join(re.sub(r"\n\s+", "\n    ", statement) + ";" for statement in SCHEMA)
    return "".join(
        (
            _HEAD,
            table(("field", "meaning", "SQLite", "PostgreSQL", "DynamoDB"), rows),
            _SQLITE,
            fence("sql", sqlite),
            _POSTGRES,
            fence("sql", made),
            _DYNAMODB,
            fence("yaml", _printed("dynamodb://orders", "cloudformation")),
        )
    )


def _printed(url: str, form: str) -> str:
    return CliRunner().invoke(command_line(), ["init", "--store", url, "--print", form], catch_exceptions=False).output


def _types_of_sqlite() -> dict[str, str]:
    with sqlite3.connect(":memory:") as ledger:
        for statement in SCHEMA:
            ledger.execute(statement)
        return {name: kind for _, name, kind, *_ in ledger.execute(f"PRAGMA table_info({TABLE})")}


def _types_of_dynamodb() -> dict[str, str]:
    """Return the types of the attributes of a record that has all fields."""
    kinds = Record.__annotations__
    values = {name: "a" if "str" in str(kinds[name]) else 1 if kinds[name] is int else 1.0 for name in Record._fields}
    return {name: next(iter(value)) for name, value in Layout().item(Record(**values)).items()}
