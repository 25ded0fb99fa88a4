"""Transactions on connections of psycopg2, which begins one with its first statement."""

from collections.abc import Sequence

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.inside import named
from onceward.stores.postgres.session import state_of
from onceward.stores.sql.drivers import CallersDriver
from onceward.stores.sql.queries import Row


class Psycopg2Driver(CallersDriver):
    """A ``psycopg2.extensions.connection``."""

    _had_autocommit = False

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        if self.connection.closed:
            raise ValueError("the connection is closed")
        if self.connection.async_:
            raise ValueError("the connection is asynchronous, and psycopg2 cannot commit there: give a plain one")
        if state_of(self.connection) is not TransactionState.ENDED:
            raise ValueError(
                "the connection is in a transaction already; commit it first, for this one must be ours to end. Without "
                "autocommit, each statement begins one, also a SELECT"
            )

    def start(self) -> None:
        """Let the first statement begin a transaction."""
        self._had_autocommit = self.connection.autocommit
        if self._had_autocommit:
            self.connection.autocommit = False

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        from psycopg2.extensions import cursor as plain  # the connection can have a factory of its own

        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(named(text), {f"p{at}": value for at, value in enumerate(values, 1)})
            rows: Sequence[Row] = cursor.fetchall()
            return rows

    def finish(self) -> None:
        """Commit."""
        self.connection.commit()
        self._restore()

    def undo(self) -> None:
        """Roll back."""
        if not self.connection.closed:
            self.connection.rollback()
            self._restore()

    def cut(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _restore(self) -> None:
        if self._had_autocommit:
            self.connection.autocommit = True
