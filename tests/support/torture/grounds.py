"""What an episode stands on: an empty ledger beside a table of effects, on each store, and what is in them at the end."""

import json
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from servers.wires import MysqlWire, Wire
from torture import wire
from torture.facts import Journal, Record
from torture.plan import Plan
from torture.shapes import EFFECTS

READ = "key, status, fence, result"
Left = tuple[list[Record], list[tuple[str, str]]]  # records, and effects that were committed with one


class Ground:
    """A ledger and effects on a server, perhaps behind a proxy that fails."""

    _front: wire.Front | None = None
    _faulty = staticmethod(partial(wire.faulty_sql, Wire))
    _place = ""  # the ledger's URL

    def __init__(self, plan: Plan, folder: Path, server: object) -> None:
        self._plan, self._folder, self._server = plan, folder, server
        self._name = f"torture_{plan.seed}_{os.getpid()}"

    def make(self, journal: Journal) -> str:
        """Make it, with a proxy before it; return the ledger's URL. Without one see wire.lose_replies."""
        raise NotImplementedError

    def read(self) -> Left:
        """Return what is there, and remove it if it is on a server."""
        raise NotImplementedError

    def calm(self, url: str) -> str:
        """Return the URL for the last deliveries; on SQL servers these meet no faults."""
        return self._at(self._server.port) if self._place else url

    def _at(self, port: int) -> str:
        return self._place.format(port=port, name=self._name)

    def leave(self) -> None:
        if self._front is not None:
            self._front.stop()

    def _proxy(self, journal: Journal) -> int:
        self._front = wire.Front(lambda: self._faulty(self._plan, self._server.port, journal).port)
        return self._front.port


class SqliteGround(Ground):
    def make(self, journal: Journal) -> str:
        with closing(sqlite3.connect(self._folder / "ledger.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO parents VALUES (1)")
            parent = "parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"
            connection.execute(f"CREATE TABLE {EFFECTS} (key TEXT, run TEXT, {parent})")
        return f"sqlite:///{self._folder}/ledger.db"

    def read(self) -> Left:
        with closing(sqlite3.connect(self._folder / "ledger.db")) as connection:
            found = connection.execute(f"SELECT {READ} FROM onceward").fetchall()
            rows = connection.execute(f"SELECT key, run FROM {EFFECTS}").fetchall()
        return [_record(*one) for one in found], rows


class PostgresGround(Ground):
    _place = "postgresql://postgres@127.0.0.1:{port}/test?schema={name}&timeout=2"

    def make(self, journal: Journal) -> str:
        parents = f"{self._name}.parents"
        parent = f"int REFERENCES {parents} (id) DEFERRABLE INITIALLY DEFERRED"
        for statement in (
            f"CREATE SCHEMA {self._name}",
            f"CREATE TABLE {parents} (id int PRIMARY KEY)",
            f"INSERT INTO {parents} VALUES (1)",
            f"CREATE TABLE {self._name}.{EFFECTS} (key text, run text, parent {parent})",
        ):
            self._server.sql(statement, database="test")
        return self._at(self._proxy(journal))

    def read(self) -> Left:
        found = self._server.sql(f"SELECT {READ} FROM {self._name}.onceward", database="test")
        rows = self._server.sql(f"SELECT key, run FROM {self._name}.{EFFECTS}", database="test")
        self._server.sql(f"DROP SCHEMA {self._name} CASCADE", database="test")
        return [_record(*one) for one in found], rows


class MysqlGround(Ground):
    _faulty = staticmethod(partial(wire.faulty_sql, MysqlWire))
    _place = "mysql://root@127.0.0.1:{port}/{name}?timeout=2"

    def make(self, journal: Journal) -> str:
        self._server.database(self._name)
        made = f"CREATE TABLE {EFFECTS} (`key` varchar(200), run varchar(200), parent int)"
        self._server.sql(made, database=self._name)
        return self._at(self._proxy(journal))

    def read(self) -> Left:
        fields = READ.replace("key", "`key`", 1)
        found = self._server.sql(f"SELECT {fields} FROM onceward", database=self._name)
        rows = self._server.sql(f"SELECT `key`, run FROM {EFFECTS}", database=self._name)
        self._server.sql(f"DROP DATABASE {self._name}")
        return [_record(*one) for one in found], rows


class DynamoGround(Ground):
    _faulty = staticmethod(wire.faulty_proxy)

    def make(self, journal: Journal) -> str:
        self._server.table(self._name)
        return f"dynamodb://{self._name}?endpoint=http://127.0.0.1:{self._proxy(journal)}"

    def read(self) -> Left:
        items = self._server.items(self._name)
        self._server.ask("DeleteTable", TableName=self._name)
        return _records([{name: next(iter(value.values())) for name, value in item.items()} for item in items]), []


class RedisGround(Ground):
    """A prefix of Redis keys. Replies are lost in the process, as for a file."""

    def make(self, journal: Journal) -> str:
        return f"{self._server.url}?prefix={self._name}&timeout=2"

    def read(self) -> Left:
        with self._server.client() as client:
            names = list(client.scan_iter(f"{self._name}:*", count=1000))
            records = _records([client.hgetall(name) for name in names if ":record:" in name])
            if names:
                client.delete(*names)
        return records, []


GROUNDS = {
    "sqlite": SqliteGround,
    "redis": RedisGround,
    "dynamodb": DynamoGround,
    "postgresql": PostgresGround,
    "mysql": MysqlGround,
}


def _records(found: list[dict[str, str]]) -> list[Record]:
    return [
        _record(one["key"], one["status"], int(one["fence"]), one.get("result"))
        for one in found
        if ":step-" not in one["key"]  # a large result of a step
    ]


def _record(key: str, status: str, fence: int, result: str | None) -> Record:
    value = None if result is None else json.loads(result)
    if isinstance(value, dict):  # told with its type
        value = value["value"]
    return Record(key.partition(":")[2], status, fence, value, result is not None)
