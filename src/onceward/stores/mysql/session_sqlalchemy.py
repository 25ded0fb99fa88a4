"""Transactions on SQLAlchemy's connections and sessions, with the drivers pymysql and asyncmy."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import pymysql
from sqlalchemy.util import await_only

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.lane import cut, is_open, run, run_async, state_of
from onceward.stores.sql import alchemy
from onceward.stores.sql.queries import Row

_DRIVERS: Final = ("pymysql", "asyncmy")
_DIALECTS: Final = frozenset({"mysql", "mariadb"})


class UnderMysql(alchemy.Underneath):
    """PyMySQL or asyncmy."""

    def check(self) -> None:
        """Raise ValueError if the engine is of another database, or commits each statement."""
        dialect = self.connection.dialect
        if dialect.name not in _DIALECTS or dialect.driver not in _DRIVERS:
            engine = self.connection.engine
            raise ValueError(f"{engine.url!r}: give an engine of mysql or mariadb with {' or '.join(_DRIVERS)}")
        if self.raw.get_autocommit():
            raise ValueError("the connection commits each statement by itself: leave out isolation_level='AUTOCOMMIT'")

    def check_begun(self, *, had_begun: bool) -> None:
        """Accept it: a claim does not read the snapshot."""

    def state(self) -> TransactionState:
        """Return the state of the driver's connection."""
        return state_of(self.raw)

    def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        """Run statements and return the rows of all."""
        if isinstance(self.raw, pymysql.Connection):
            return run(self.raw, texts)
        return await_only(run_async(self.raw, texts))

    def was_closed(self) -> bool:
        """Return whether the driver's connection was closed."""
        return not is_open(self.raw)

    def cut(self) -> None:
        """Close the driver's connection."""
        cut(self.raw)


driver_of = partial(alchemy.driver_of, UnderMysql)
