"""The migration's operation: it makes the ledger's tables by the statements of the ledger itself, on Django's connection."""

from collections.abc import Iterator
from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from onceward.web.django_project import alias, given

NAMED = "onceward"


class MakeLedger(Operation):
    """Makes the ledger, or what it lacks, in the database that ``settings.ONCEWARD`` names, and in no other one.

    Args:
        **layouts: which layout of the tables each database then has. One that is not the ledger's own needs a new migration.
    """

    reduces_to_sql = True
    reversible = False  # without its ledger, every effect can run again

    def __init__(self, **layouts: int) -> None:
        self.layouts = layouts

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the model's state is made beside it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make the tables."""
        here = schema_editor.connection
        if "once" in given() or here.alias != alias() or not router.allow_migrate(here.alias, app_label):
            return
        for statement in _statements(here):
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        """Return what it does."""
        return "Make the ledger of onceward"


def tables_of(connection: Any) -> tuple[str, ...]:
    """Return the names of the ledger's tables in a database."""
    ends = ("", "_meta", "_high") if connection.vendor == "sqlite" else ("", "_meta")
    return tuple(f"{NAMED}{end}" for end in ends)


def _statements(connection: Any) -> Iterator[str]:
    """Return the statements of the database's own ledger, whose module needs its driver."""
    if connection.vendor == "postgresql":
        from onceward.stores.postgres import schema as postgres

        yield postgres.make(postgres.Names(NAMED, None))
    elif connection.vendor == "mysql":
        from onceward.stores.mysql import schema as mysql

        yield from mysql.tables(mysql.MysqlNames(NAMED), mysql.flavor_of(connection.mysql_server_info))
    else:
        from onceward.stores.sqlite import schema as sqlite

        with connection.cursor() as cursor:
            there = {row[1] for row in cursor.execute(f"PRAGMA table_info({sqlite.TABLE})").fetchall()}
        yield from sqlite.SCHEMA
        if not there:
            yield from sqlite.INDEXES.values()
            return
        missing = sqlite.ADDED.keys() - there  # only `onceward migrate` makes the indexes of a large ledger
        yield from (f"ALTER TABLE {sqlite.TABLE} ADD COLUMN {name} {sqlite.ADDED[name]}" for name in missing)
