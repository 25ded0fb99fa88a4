"""Alembic: `revision --autogenerate` leaves the ledger's tables alone."""

from collections.abc import Callable

__all__ = ["without_ledger"]

_ENDS = ("", "_meta", "_high")  # of a ledger's tables; the last one is SQLite's


def without_ledger(
    *tables: str, include_name: Callable[..., bool] | None = None
) -> Callable[[str | None, str, object], bool]:
    """Return a hook that keeps ``alembic revision --autogenerate`` and ``alembic check`` from the tables of ledgers.

    Give it in ``env.py``, wherever that calls ``context.configure``: ``context.configure(..., include_name=without_ledger())``.

    Args:
        *tables: the values of ``table=`` in the ledgers' URLs, in any schema; by default ``onceward``.
        include_name: a hook of your own, for all other names.
    """
    left_out = {table + end for table in tables or ("onceward",) for end in _ENDS}

    def include(name: str | None, kind: str, parents: object) -> bool:
        if kind == "table" and name in left_out:
            return False
        return include_name is None or include_name(name, kind, parents)

    return include
