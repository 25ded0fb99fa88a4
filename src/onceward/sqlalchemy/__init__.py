"""SQLAlchemy and Alembic: a project's own ``create_all`` and migrations make the ledger."""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.sqlalchemy.declaring import make_ledger, tables

__all__ = ["make_ledger", "tables"]

__getattr__, __dir__ = lazily(__name__, {".declaring": ("make_ledger", "tables")})
