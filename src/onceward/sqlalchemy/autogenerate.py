"""Alembic's autogenerate: it proposes a ledger that a ``MetaData`` declares, and drops none."""

from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.operations.ops import MigrateOperation

from onceward.sqlalchemy.declared import INFO, DeclaredLedger
from onceward.stores import ddl

try:
    from alembic.util import DispatchPriority, PriorityDispatchResult
except ImportError:  # before 1.18: comparators run in the order in which they were registered
    _LAST: dict[str, Any] = {}
    _ON: Any = None
else:
    _LAST, _ON = {"priority": DispatchPriority.LAST}, PriorityDispatchResult.CONTINUE


class MakeLedgerOp(MigrateOperation):
    """Makes a ledger in a revision."""

    def __init__(self, ledger: DeclaredLedger) -> None:
        self.ledger = ledger

    def reverse(self) -> "KeepLedgerOp":
        """Return what a downgrade does."""
        return KeepLedgerOp()

    def to_diff_tuple(self) -> tuple[str, str]:
        """Return what ``alembic check`` prints."""
        return "make_ledger", self.ledger.table


class KeepLedgerOp(MigrateOperation):
    """Does nothing in a downgrade."""

    def reverse(self) -> "KeepLedgerOp":
        """Return itself."""
        return self

    def to_diff_tuple(self) -> tuple[str]:
        """As above."""
        return ("keep_ledger",)


@comparators.dispatch_for("schema", **_LAST)
def compare(context: Any, upgrade_ops: Any, _: Any) -> Any:
    """Propose what is missing, and leave the tables alone that no model describes."""
    all_metadata = context.metadata if isinstance(context.metadata, list | tuple) else [context.metadata]
    for ledger in (one for metadata in all_metadata for one in metadata.info.get(INFO, ())):
        ours = ddl.tables("sqlite", ledger.table)  # a name more than on other databases
        upgrade_ops.ops[:] = [one for one in upgrade_ops.ops if getattr(one, "table_name", None) not in ours]
        if not ledger.is_made(context.connection):
            upgrade_ops.ops.append(MakeLedgerOp(ledger))
    return _ON


@renderers.dispatch_for(MakeLedgerOp)
def render_make(context: Any, op: MakeLedgerOp) -> str:
    """Return the line of an upgrade."""
    context.imports.add("import onceward.sqlalchemy")
    table = "" if op.ledger.table == "onceward" else f", table={op.ledger.table!r}"
    schema = "" if op.ledger.schema is None else f", schema={op.ledger.schema!r}"
    return f"onceward.sqlalchemy.make_ledger(op{table}{schema})"


@renderers.dispatch_for(KeepLedgerOp)
def render_keep(_: Any, __: KeepLedgerOp) -> str:
    """Return the line of a downgrade."""
    return "pass  # the ledger stays: without it, every effect can run again"
