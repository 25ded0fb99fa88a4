"""Where the demo's ledger and its table of effects are: in an SQLite file, or in a PostgreSQL database."""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceward.cli.demo_queue import connected

if TYPE_CHECKING:
    import psycopg

EFFECTS: Final = "SELECT message FROM onceward_demo_effects"
COUNT: Final = "SELECT count(*) FROM onceward_demo_effects"
_CREATE: Final = (
    "CREATE TABLE onceward_demo_effects (message TEXT NOT NULL, worker INTEGER NOT NULL, attempt INTEGER NOT NULL)"
)
_INSERT: Final = "INSERT INTO onceward_demo_effects (message, worker, attempt) VALUES (?, ?, ?)"


class DemoLedger:
    """The ledger's URL, and connections for the effects.

    Args:
        folder: for the SQLite file.
        store: the URL of a PostgreSQL database; empty for the file.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self._file, self._store = folder / "ledger.db", store
        if store:
            self.url = f"{store}{'&' if '?' in store else '?'}table=onceward_demo"
            self.insert = _INSERT.replace("?", "%s")
        else:
            self.url, self.insert = f"sqlite:///{self._file}?timeout=30", _INSERT

    def connected(self) -> "sqlite3.Connection | psycopg.Connection[Any]":
        """Open a connection for the effects."""
        if not self._store:
            return connected(self._file)
        import psycopg

        return psycopg.connect(self._store, autocommit=True)

    def create(self) -> None:
        """Make the table of effects. It must not be there."""
        with self.connected() as connection:
            connection.execute(_CREATE)

    def drop(self) -> None:
        """Remove what is not in the folder."""
        if self._store:
            with self.connected() as connection:
                connection.execute("DROP TABLE IF EXISTS onceward_demo_effects, onceward_demo, onceward_demo_meta")
