"""Values in an SQL database, in the table ``onceward_values``, which is made on first use.

A value is the row with an empty member. The members of a set are rows, each with the digest of its JSON.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.pipelines.databases import Database, Dialect, Statement
from onceward.pipelines.keyvalue import ENCODER, Values
from onceward.pipelines.kit import absolute

_NOW: Final[dict[Dialect, str]] = {  # seconds since 1970 on the database's clock
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())::double precision",
    # Not unix_timestamp(now(6)): the hour in which clocks are put back comes twice.
    "mysql": "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) / 1e6",
}
_CREATE: Final[dict[Dialect, str]] = {
    "sqlite": "CREATE TABLE IF NOT EXISTS onceward_values (space TEXT NOT NULL, name TEXT NOT NULL, member TEXT NOT NULL, "
    "value TEXT NOT NULL, expires_at REAL, PRIMARY KEY (space, name, member)) WITHOUT ROWID",
    "postgresql": "CREATE TABLE IF NOT EXISTS onceward_values (space text NOT NULL, name text NOT NULL, member text NOT NULL, "
    "value text NOT NULL, expires_at double precision, PRIMARY KEY (space, name, member))",
    # Bytes, because MySQL compares texts without the spaces at their ends. The lengths fit into one index.
    "mysql": "CREATE TABLE IF NOT EXISTS onceward_values (space VARBINARY(400) NOT NULL, name VARBINARY(2000) NOT NULL, "
    "member CHAR(64) NOT NULL, value LONGTEXT NOT NULL, expires_at DOUBLE, PRIMARY KEY (space, name, member)) "
    "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}
# Where it is there, CREATE would ask for the right to make tables all the same.
_LOOK: Final[dict[Dialect, str]] = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE name = 'onceward_values'",
    "postgresql": "SELECT 1 WHERE to_regclass('onceward_values') IS NOT NULL",
    "mysql": "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = 'onceward_values'",
}
# PostgreSQL's, if another session makes the table at the same time.
_MADE_MEANWHILE: Final = frozenset({"23505", "42P07", "42710"})
_CONFLICT: Final[dict[Dialect, str]] = {
    "sqlite": "ON CONFLICT (space, name, member) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at",
    "postgresql": "ON CONFLICT (space, name, member) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at",
    "mysql": "ON DUPLICATE KEY UPDATE value = VALUES(value), expires_at = VALUES(expires_at)",
}


class SqlValues(Values):
    """The table, and the rows of one space in it."""

    def __init__(self, url: str, space: str, folder: str) -> None:
        self._database = Database(absolute(url, Path(folder)))
        self._space = space
        self._is_made = False
        dialect = self._database.dialect
        now = _NOW[dialect]  # a constant of this file, like all that these texts are made of
        self._get = Statement(
            "SELECT member, value FROM onceward_values WHERE space = :space AND name = :name AND "
            f"(expires_at IS NULL OR expires_at > {now}) ORDER BY member",
            dialect,
        )
        self._put = Statement(
            "INSERT INTO onceward_values (space, name, member, value, expires_at) VALUES "
            f"(:space, :name, :member, :value, {now} + :ttl) {_CONFLICT[dialect]}",
            dialect,
        )
        self._extend = Statement(
            f"UPDATE onceward_values SET expires_at = {now} + :ttl WHERE space = :space AND name = :name AND "
            f"member <> '' AND (expires_at IS NULL OR expires_at > {now})",
            dialect,
        )

    def get(self, key: str) -> Any:
        """Return a value, or the members of a set."""
        with self._database.connection() as connection:
            self._create_table(connection)
            rows: Any = self._database.execute(connection, self._get, {"space": self._space, "name": key})["rows"]
        if not rows:
            return None
        values = [msgspec.json.decode(row["value"]) for row in rows]
        return values[0] if not rows[0]["member"] else values

    def set(self, key: str, value: Any, ttl: float | None) -> None:
        """Set a value."""
        self._write(key, "", ENCODER.encode(value).decode(), ttl)

    def add(self, key: str, member: Any, ttl: float | None) -> None:
        """Add to a set."""
        text = ENCODER.encode(member)
        self._write(key, sha256(text).hexdigest(), text.decode(), ttl)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _write(self, key: str, member: str, value: str, ttl: float | None) -> None:
        row = {"space": self._space, "name": key, "member": member, "value": value, "ttl": ttl}
        with self._database.connection() as connection:
            self._create_table(connection)
            self._database.execute(connection, self._put, row)
            # No transaction: others who add to this set would hold a row each, and wait for all of them. If this one dies here, its
            # step is made again.
            if member and ttl is not None:
                self._database.execute(connection, self._extend, row)

    def _create_table(self, connection: Any) -> None:
        """Make the table if it is missing."""
        dialect = self._database.dialect
        if not self._is_made and not self._database.run(connection, _LOOK[dialect])["rows"]:
            try:
                self._database.run(connection, _CREATE[dialect])
            except Exception as error:
                if getattr(error, "sqlstate", None) not in _MADE_MEANWHILE:
                    raise
        self._is_made = True
