"""What a run stands on: a ledger on each store, what fails between it and its clients, and how its server dies and comes back."""

import random
from functools import partial
from pathlib import Path

from servers.dynoxide import Dynoxide
from servers.pairs import PAIRS, Pair
from servers.redis import Redis, Replica
from servers.wires import Gate
from torture.facts import Journal
from torture.plan import Plan
from torture.wire import faulty_proxy, faulty_sql

LANES = "lanes=2&timeout=2"
DURABLE = {"appendonly": "yes", "appendfsync": "always"}


class Memory:
    url, one_process = "memory:", True

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Take nothing of these."""

    def restart(self) -> None:
        """Do nothing."""

    promote = stop = restart


class Sqlite(Memory):
    one_process = False

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.url = f"sqlite:///{folder}/ledger.db"


class Dynamodb:
    """A server whose table is on the disk, behind a proxy."""

    one_process = False

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._server = Dynoxide(folder / "dynamodb")
        self._server.table("ledger")
        self._proxy = faulty_proxy(plan, self._server.port, Journal(folder / "faults"))
        self.url = f"dynamodb://ledger?endpoint=http://127.0.0.1:{self._proxy.port}"

    def restart(self) -> None:
        self._server.restart()

    promote = restart

    def stop(self) -> None:
        self._proxy.stop()
        self._server.stop()


class Sql:
    """A server behind a wire that loses requests and replies, and perhaps its replica."""

    one_process = False

    def __init__(
        self, kind: Pair, folder: Path, plan: Plan, *, replicated: bool = False, synchronous: bool = True
    ) -> None:
        self._server = kind.primary()
        self._replica = None
        if replicated:
            self._server.sql("CREATE TABLE effects (name varchar(9))", database="test")  # which a replica waits for
            self._replica = kind.replica(self._server, synchronous=synchronous)
        self._wire = faulty_sql(kind.wire, plan, self._server.port, Journal(folder / "faults"))
        self.url = f"{kind.through(self._wire)}?{LANES}"

    def restart(self) -> None:
        self._server.crash()
        self._server.start()

    def hold_replication(self) -> None:
        """Let the replica hear nothing more."""
        assert self._replica is not None
        self._replica.hold_replication()

    def promote(self) -> None:
        assert self._replica is not None
        self._server.crash()
        self._replica.promote()
        self._wire.server = self._replica.port

    def stop(self) -> None:
        self._wire.close()
        self._server.stop()
        if self._replica is not None:
            self._replica.stop()


class RedisGround:
    """A server behind a gate that cuts connections off in place of a reply. Alone, it has its log on the disk."""

    one_process = False

    def __init__(self, folder: Path, plan: Plan, *, replicated: bool = False, synchronous: bool = True) -> None:
        self._servers = [Redis(**({} if replicated else DURABLE))]
        if replicated:
            self._servers.append(Replica(self._servers[0]))
        self._gate = Gate(self._servers[0].port)
        chance = random.Random(plan.seed)
        self._gate.loses = lambda: chance.random() < plan.loss
        wait = "&wait=1" if replicated and synchronous else ""
        self.url = f"redis://127.0.0.1:{self._gate.port}/0?{LANES}{wait}"

    def restart(self) -> None:
        self._servers[0].restart()

    def hold_replication(self) -> None:
        self._servers[1].ask("REPLICAOF", "127.0.0.1", "1")  # where nobody listens

    def promote(self) -> None:
        primary, replica = self._servers
        primary.kill()
        replica.promote()
        self._gate.turn(replica.port)
        if "wait" in self.url:
            self._servers.append(Replica(replica))  # which confirms the next writes

    def stop(self) -> None:
        self._gate.close()
        for server in self._servers:
            server.stop()


GROUNDS = {
    "memory": Memory,
    "sqlite": Sqlite,
    "postgresql": partial(Sql, PAIRS["postgresql"]),
    "mysql": partial(Sql, PAIRS["mariadb"]),
    "redis": RedisGround,
    "dynamodb": Dynamodb,
}
REPLICATED = {"postgresql", "mysql", "redis"}
