"""Transactions on SQLAlchemy's connections and sessions, with the drivers pymysql and asyncmy."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import pymysql
from sqlalchemy.util import await_only

from onceward.stores.mysql.lane import cut, fetch, fetch_async, state_of
from onceward.stores.sql import alchemy
from onceward.stores.sql.exchange import Row

_DRIVERS: Final = ("pymysql", "asyncmy")
_DIALECTS: Final = frozenset({"mysql", "mariadb"})


class UnderMysql(alchemy.Underneath):
    """PyMySQL or asyncmy."""

    state_of = staticmethod(state_of)

    def check(self) -> None:
        dialect = self.connection.dialect
        if dialect.name not in _DIALECTS or dialect.driver not in _DRIVERS:
            engine = self.connection.engine
            raise ValueError(f"{engine.url!r}: give an engine of mysql or mariadb with {' or '.join(_DRIVERS)}")
        if self.raw.get_autocommit():
            raise ValueError("the connection commits each statement by itself: leave out isolation_level='AUTOCOMMIT'")

    def check_begun(self, *, had_begun: bool) -> None:
        """Accept it: a claim does not read the snapshot."""

    def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        if isinstance(self.raw, pymysql.Connection):
            return fetch(self.raw, texts)
        return await_only(fetch_async(self.raw, texts))

    def cut(self) -> None:
        cut(self.raw)


driver_of = partial(alchemy.driver_of, UnderMysql)
