"""What a project calls: ``tables`` declares the ledger, and ``make_ledger`` makes it in a revision."""

import sys
from typing import Any

from sqlalchemy import MetaData, event, text

from onceward.sqlalchemy.declared import INFO, DeclaredLedger
from onceward.stores.sql.columns import check_name


def tables(metadata: MetaData, *, table: str = "onceward", schema: str | None = None) -> None:
    """Make the ledger a part of a ``MetaData``: ``tables(Base.metadata)``, once, beside your models.

    Then ``metadata.create_all()`` makes the ledger, and ``alembic revision --autogenerate`` does not drop it. ``drop_all`` leaves it
    alone.

    Args:
        metadata: the project's ``MetaData``, as of ``Base``, of Flask-SQLAlchemy's ``db`` or of ``SQLModel``.
        table: the table's name, as the ledger's URL has it in ``table=``; SQLite has only ``onceward``.
        schema: its schema in PostgreSQL.

    Raises:
        ValueError: no table can have this name.
    """
    for what, name in (("table", table), ("schema", schema)):
        if name is not None:
            check_name(what, name)
    ledger, ledgers = DeclaredLedger(table, schema), metadata.info.setdefault(INFO, [])
    if ledger in ledgers:
        return
    ledgers.append(ledger)
    event.listen(metadata, "after_create", lambda _, connection, **__: ledger.make(connection))
    if "alembic" in sys.modules:  # an application that runs does not load it
        from onceward.sqlalchemy import autogenerate  # noqa: F401 - it registers itself


def make_ledger(op: Any, *, table: str = "onceward", schema: str | None = None) -> None:
    """Make a ledger, or what it lacks, in a revision of Alembic: ``make_ledger(op)`` in ``upgrade()``.

    Args:
        op: ``alembic.op``.
        table: as for :func:`tables`.
        schema: as for :func:`tables`.
    """
    ledger, context = DeclaredLedger(table, schema), op.get_context()
    if not context.as_sql:
        ledger.make(op.get_bind())
        return
    for statement in ledger.statements(context.dialect):
        op.execute(text(statement.replace(":", "\\:")))  # it names no parameters
