"""What an episode stands on: an empty ledger beside a table of effects, on each store, and what is in them at the end."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from servers.dynoxide import Dynoxide
from servers.mysql import Mariadb
from servers.postgres import Postgres
from servers.redis import Redis
from torture import wire
from torture.facts import Record
from torture.journal import Journal
from torture.plan import Plan
from torture.shapes import EFFECTS

READ = "key, status, fence, result, unsent, due_at, expires_at"
Left = tuple[list[Record], list[tuple[str, str, int]]]  # records, and effects that were committed with one


class DynamoServer(NamedTuple):
    """The DynamoDB-compatible server that episodes share."""

    port: int

    def ask(self, action: str, **body: object) -> dict:
        return Dynoxide.ask(self, action, **body)  # type: ignore[arg-type]  # it asks for the port only

    def table(self, name: str) -> str:
        return Dynoxide.table(self, name)  # type: ignore[arg-type]  # as above


class SqliteGround:
    """A file."""

    def __init__(self, plan: Plan, folder: Path, server: None = None) -> None:
        self._path = folder / "ledger.db"

    def make(self, journal: Journal) -> str:
        """Make it, with a proxy before it; return the ledger's URL. For a file see wire.lose_replies."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO parents VALUES (1)")
            connection.execute(
                f"CREATE TABLE {EFFECTS} (key TEXT, run TEXT, "
                "parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        return f"sqlite:///{self._path}"

    def calm(self, url: str) -> str:
        """Return the URL for the last deliveries; on PostgreSQL these meet no faults."""
        return url

    def read(self) -> Left:
        """Return what is there, and remove it if it is on a server."""
        with closing(sqlite3.connect(self._path)) as connection:
            found = connection.execute(f"SELECT {READ} FROM onceward").fetchall()
            rows = connection.execute(f"SELECT key, run, 1 FROM {EFFECTS}").fetchall()
        return [_record(*one) for one in found], rows

    def leave(self) -> None:
        """Stop the proxy."""


class PostgresGround:
    """A schema."""

    _front: wire.Front | None = None

    def __init__(self, plan: Plan, folder: Path, server: Postgres) -> None:
        self._plan, self._server = plan, server
        self._schema = f"torture_{plan.seed}_{os.getpid()}"

    def make(self, journal: Journal) -> str:
        parents = f"{self._schema}.parents"
        parent = f"int REFERENCES {parents} (id) DEFERRABLE INITIALLY DEFERRED"
        for statement in (
            f"CREATE SCHEMA {self._schema}",
            f"CREATE TABLE {parents} (id int PRIMARY KEY)",
            f"INSERT INTO {parents} VALUES (1)",
            f"CREATE TABLE {self._schema}.{EFFECTS} (key text, run text, parent {parent})",
        ):
            self._server.sql(statement, database="test")
        self._front = wire.Front(lambda: wire.faulty_wire(self._plan, self._server.port, journal).port)
        return self._at(self._front.port)

    def calm(self, url: str) -> str:
        return self._at(self._server.port)

    def _at(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/test?schema={self._schema}&timeout=2"

    def read(self) -> Left:
        found = self._server.sql(f"SELECT {READ} FROM {self._schema}.onceward", database="test")
        rows = self._server.sql(f"SELECT key, run, 1 FROM {self._schema}.{EFFECTS}", database="test")
        self._server.sql(f"DROP SCHEMA {self._schema} CASCADE", database="test")
        return [_record(*one) for one in found], rows

    def leave(self) -> None:
        if self._front is not None:
            self._front.stop()


class MysqlGround:
    """A database."""

    _front: wire.Front | None = None

    def __init__(self, plan: Plan, folder: Path, server: Mariadb) -> None:
        self._plan, self._server = plan, server
        self._database = f"torture_{plan.seed}_{os.getpid()}"

    def make(self, journal: Journal) -> str:
        self._server.database(self._database)
        made = f"CREATE TABLE {EFFECTS} (`key` varchar(200), run varchar(200), parent int)"
        self._server.sql(made, database=self._database)
        self._front = wire.Front(lambda: wire.faulty_mysql(self._plan, self._server.port, journal).port)
        return self._at(self._front.port)

    def calm(self, url: str) -> str:
        return self._at(self._server.port)

    def _at(self, port: int) -> str:
        return f"mysql://root@127.0.0.1:{port}/{self._database}?timeout=2"

    def read(self) -> Left:
        fields = READ.replace("key", "`key`", 1)
        found = self._server.sql(f"SELECT {fields} FROM onceward", database=self._database)
        rows = self._server.sql(f"SELECT `key`, run, 1 FROM {EFFECTS}", database=self._database)
        self._server.sql(f"DROP DATABASE {self._database}")
        return [_record(*one[:5], *_seconds(*one[5:])) for one in found], rows

    def leave(self) -> None:
        if self._front is not None:
            self._front.stop()


def _seconds(*times: int | None) -> list[float | None]:
    return [None if time is None else time / 1e6 for time in times]


class DynamoGround:
    """Two tables."""

    _front: wire.Front | None = None

    def __init__(self, plan: Plan, folder: Path, server: DynamoServer) -> None:
        self._plan, self._server = plan, server
        self._table = f"{plan.seed}-{os.getpid()}"

    def make(self, journal: Journal) -> str:
        self._server.table(self._table)
        os.environ["TORTURE_EFFECTS"] = self._server.table(f"{self._table}-{EFFECTS}")
        self._front = wire.Front(lambda: wire.faulty_proxy(self._plan, self._server.port, journal).port)
        return f"dynamodb://{self._table}?endpoint=http://127.0.0.1:{self._front.port}"

    def calm(self, url: str) -> str:
        return url

    def read(self) -> Left:
        names = self._table, f"{self._table}-{EFFECTS}"
        items, effects = (self._server.ask("Scan", TableName=name)["Items"] for name in names)
        for name in names:
            self._server.ask("DeleteTable", TableName=name)
        records = []
        for item in items:
            if ":step-" in item["key"]["S"]:  # a large result of a step, which is compressed
                continue
            plain = {name: next(iter(value.values())) for name, value in item.items()}
            times = [float(plain[name]) if name in plain else None for name in ("due_at", "expires_at")]
            fence, unsent = int(plain["fence"]), plain.get("unsent")
            records.append(_record(plain["key"], plain["status"], fence, plain.get("result"), unsent, *times))
        return records, [(one["key"]["S"], one["run"]["S"], int(one["n"]["N"])) for one in effects]

    def leave(self) -> None:
        if self._front is not None:
            self._front.stop()


class RedisGround:
    """A prefix of Redis keys. Replies are lost in the process, as for a file."""

    def __init__(self, plan: Plan, folder: Path, server: Redis) -> None:
        self._server = server
        self._prefix = f"torture-{plan.seed}-{os.getpid()}"

    def make(self, journal: Journal) -> str:
        return f"{self._server.url}?prefix={self._prefix}&timeout=2"

    def calm(self, url: str) -> str:
        return url

    def read(self) -> Left:
        records = []
        with self._server.client() as client:
            names = list(client.scan_iter(f"{self._prefix}:*", count=1000))
            for name in names:
                if ":record:" not in name or ":step-" in name:  # a large result of a step
                    continue
                one = client.hgetall(name)
                times = [float(one[field]) if field in one else None for field in ("due_at", "expires_at")]
                fence, unsent = int(one["fence"]), one.get("unsent")
                records.append(_record(one["key"], one["status"], fence, one.get("result"), unsent, *times))
            if names:
                client.delete(*names)
        return records, []

    def leave(self) -> None:
        """Stop nothing."""


GROUNDS = {
    "sqlite": SqliteGround,
    "redis": RedisGround,
    "dynamodb": DynamoGround,
    "postgresql": PostgresGround,
    "mysql": MysqlGround,
}


def _record(
    key: str,
    status: str,
    fence: int,
    result: str | None,
    unsent: str | None,
    due: float | None,
    expires: float | None,
) -> Record:
    value = None if result is None else json.loads(result)
    if isinstance(value, dict):  # told with its type
        value = value["value"]
    return Record(key.partition(":")[2], status, fence, value, result is not None, unsent, due, expires)
