"""The migration's operation: it makes the ledger's tables by the statements of the ledger itself, on Django's connection."""

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from onceward.stores import ddl
from onceward.web.django_project import alias, configuration


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
        if "once" in configuration() or here.alias != alias() or not router.allow_migrate(here.alias, app_label):
            return
        columns = set[str]()
        if here.vendor == "sqlite":
            with here.cursor() as cursor:
                columns = {row[1] for row in cursor.execute("PRAGMA table_info(onceward)").fetchall()}
        is_mariadb = getattr(here, "mysql_is_mariadb", False)
        for statement in ddl.statements(here.vendor, columns, mariadb=is_mariadb):
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        """Return what it does."""
        return "Make the ledger of onceward"
