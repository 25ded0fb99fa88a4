"""Runs one episode: starts its actors, does to them from outside what the plan says, and reads what is left."""

import json
import os
import pickle
import signal
import sqlite3
import sys
import traceback
from contextlib import closing
from functools import partial
from pathlib import Path

from servers.orphans import die_with
from servers.wires import MysqlWire, Wire
from servers.wrong_clocks import library, wrong_clock
from torture import actor, wire
from torture.facts import Facts, Journal, Record, now
from torture.plan import Plan
from torture.shapes import EFFECTS

READ = "key, status, fence, result"
Left = tuple[list[Record], list[tuple[str, str]]]  # records, and effects that were committed with one


class Ground:
    """A ledger and effects on a server, perhaps behind a proxy that fails.

    ``make`` makes it, with a proxy before it, and returns the ledger's URL; without one see wire.lose_replies. ``read``
    returns what is there, and removes it if it is on a server.
    """

    _front: wire.Front | None = None
    _faulty = staticmethod(partial(wire.faulty_sql, Wire))
    _place = ""  # the ledger's URL

    def __init__(self, plan: Plan, folder: Path, server: object) -> None:
        self._plan, self._folder, self._server = plan, folder, server
        self._name = f"torture_{plan.seed}_{os.getpid()}"

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


SQL = {"postgresql": PostgresGround, "mysql": MysqlGround}
GROUNDS = {"sqlite": SqliteGround, "redis": RedisGround, "dynamodb": DynamoGround, **SQL}


def _records(found: list[dict[str, str]]) -> list[Record]:
    whole = [one for one in found if ":step-" not in one["key"]]  # and no large result of a step
    return [_record(one["key"], one["status"], int(one["fence"]), one.get("result")) for one in whole]


def _record(key: str, status: str, fence: int, result: str | None) -> Record:
    value = None if result is None else json.loads(result)
    if isinstance(value, dict):  # told with its type
        value = value["value"]
    return Record(key.partition(":")[2], status, fence, value, result is not None)


HANG = 40.0  # seconds beyond all leases and stops without a line of the journal; a frozen request takes some of them
AT_MOST = 5  # times as long an episode may take that writes lines: a busy machine is slow, and does not hang
TICK = 0.005


class Episode:
    def __init__(self, plan: Plan, folder: Path, server: object, plant: str | None = None) -> None:
        self.plan, self.folder, self.plant = plan, folder, plant
        self._ground = GROUNDS[plan.store](plan, folder, server)
        self.journal = Journal(folder / "journal")
        (folder / "plan").write_bytes(pickle.dumps(plan))
        self._pids: dict[int, int] = {}  # process → number of its actor
        self._stopped: dict[int, float] = {}  # process → when it is continued
        self._stops = 0
        self._signals: list[tuple[float, int, str]] = []

    def run(self) -> Facts:
        """Run it, and return what the journal and the ledger say at the end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of actors that do not handle it yet
        url = self._ground.make(self.journal)
        began = now()
        due = sorted((began + worker.start, number) for number, worker in enumerate(self.plan.workers))
        self._patience(began)
        try:
            while due or self._pids:
                while due and due[0][0] <= now():
                    at, number = due.pop(0)
                    pid = self._start(number, url)
                    self._signals += [(at + after, pid, name) for after, name in self.plan.workers[number].signals]
                self._turn()
            self._patience(now())
            self._start(-1, self._ground.calm(url))
            while self._pids:
                self._turn()
        finally:
            self._end()
        return Facts(self.plan, self.folder, *self._ground.read())

    def _patience(self, began: float) -> None:
        self._quiet = HANG + 4 * self.plan.lease
        self._limit, self._last, self._written = began + self._quiet, began + AT_MOST * self._quiet, 0

    def _start(self, number: int, url: str) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pids[pid] = number
            return pid
        code = 1
        try:
            die_with(parent)
            self._be(number, url)
            code = 0
        except BaseException:
            trace = traceback.format_exc()
            self.journal("crash", number=number, trace=trace)
        finally:
            os._exit(code)

    def _be(self, number: int, url: str) -> None:
        skew = self.plan.workers[number].skew if number >= 0 else 0
        if skew and library() is not None:
            own = [sys.executable, "-m", "torture.actor", str(number), str(self.folder), url, self.plant or ""]
            os.execve(sys.executable, own, {**os.environ, **wrong_clock(f"{skew:+d}h")})
        actor.run(self.plan, number, self.folder, url, self.plant)

    def _turn(self) -> None:
        """Do what is due, and take in which actors have ended or stopped."""
        for at, pid, name in [one for one in self._signals if one[0] <= now()]:
            self._signals.remove((at, pid, name))
            if pid in self._pids:
                os.kill(pid, getattr(signal, name))
        for pid, at in list(self._stopped.items()):
            if at <= now():
                del self._stopped[pid]
                self.journal("was-continued", actor=pid)
                os.kill(pid, signal.SIGCONT)
        for pid in list(self._pids):
            self._look(pid)
        written = (self.folder / "journal").stat().st_size
        if written != self._written:
            self._written = written
            self._limit = max(self._limit, min(now() + self._quiet, self._last))
        if now() > self._limit:
            self._hung()
        signal.sigtimedwait([], TICK)

    def _look(self, pid: int) -> None:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if not found:
            return
        if os.WIFSTOPPED(status):
            pauses = self.plan.pauses
            pause = pauses[self._stops % len(pauses)]
            self._stops += 1
            self._stopped[pid] = now() + pause
            self._limit += pause
            self._last += pause
            self.journal("was-stopped", actor=pid)
            return
        del self._pids[pid]
        self._stopped.pop(pid, None)
        if os.WIFSIGNALED(status):
            self.journal("killed", actor=pid, signal=os.WTERMSIG(status))
        elif os.WEXITSTATUS(status):
            self.journal("broke", actor=pid, code=os.WEXITSTATUS(status))

    def _hung(self) -> None:
        for pid in list(self._pids):
            os.kill(pid, signal.SIGUSR2)  # its stacks
            signal.sigtimedwait([], 0.2)
            self.journal("hung", actor=pid, number=self._pids[pid])
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self._pids[pid]

    def _end(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._ground.leave()
        self.journal.close()
