"""Alembic's autogenerate: it drops no ledger that a ``MetaData`` declares."""

from typing import Any

from alembic.autogenerate import comparators

from onceward.sqlalchemy.declared import INFO
from onceward.stores import ddl

try:
    from alembic.util import DispatchPriority, PriorityDispatchResult
except ImportError:  # before 1.18: comparators run in the order in which they were registered
    _LAST: dict[str, Any] = {}
    _ON: Any = None
else:
    _LAST, _ON = {"priority": DispatchPriority.LAST}, PriorityDispatchResult.CONTINUE


@comparators.dispatch_for("schema", **_LAST)
def compare(context: Any, upgrade_ops: Any, _: Any) -> Any:
    """Leave the tables alone that no model describes."""
    all_metadata = context.metadata if isinstance(context.metadata, list | tuple) else [context.metadata]
    for ledger in (one for metadata in all_metadata for one in metadata.info.get(INFO, ())):
        ours = ddl.tables("sqlite", ledger.table)  # a name more than on other databases
        upgrade_ops.ops[:] = [one for one in upgrade_ops.ops if getattr(one, "table_name", None) not in ours]
    return _ON
