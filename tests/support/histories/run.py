"""One run: processes that deliver, what is done to them and to their server from outside, and the verdict on their history."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import waiting
from histories.recording import instant
from places import SOURCES, SUPPORT
from servers.dynoxide import Dynoxide
from servers.needs import needs
from servers.orphans import watched
from servers.pairs import PAIRS, Pair
from servers.redis import Redis, Replica
from servers.wires import Gate
from servers.wrong_clocks import library, wrong_clock
from torture.facts import Journal
from torture.plan import LEASES, Plan
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


SQL = {name: partial(Sql, PAIRS[kind]) for name, kind in (("postgresql", "postgresql"), ("mysql", "mariadb"))}
GROUNDS = {"memory": Memory, "sqlite": Sqlite, "redis": RedisGround, "dynamodb": Dynamodb, **SQL}
REPLICATED = {"postgresql", "mysql", "redis"}


CHECKER = SUPPORT / "histories" / "checker"
PROCESSES = 3
# Its clock has whole seconds, and its client sends a request again after a lost reply.
DYNAMODB = ("-slack", "1", "-repeats")
PATIENCE = 60.0  # seconds for the processes to end, beyond their time
MOST = 2  # findings that are shown of one run
KINDS = ("plain", "kills", "restart", "failover")


@dataclass(frozen=True)
class Asked:
    store: str
    seed: int
    seconds: float = 8.0
    kind: str = "plain"
    plant: str | None = None
    loss: float = 0.02
    synchronous: bool = True

    def __str__(self) -> str:
        return f"{self.store}, {self.kind}, seed {self.seed}"


class Verdict(NamedTuple):
    """What the checker says; ``finding`` is "" if every history has an explanation."""

    keys: int
    operations: int
    unanswered: int
    told: int
    finding: str


def checker(folder: Path) -> Path:
    """Return the checker's program, compiled into ``folder`` unless it is there. Fails or skips a test where Go is missing."""
    made = folder / "checker"
    if not made.exists():
        go = needs("go", "apt-get install golang-go")
        build = {"cwd": CHECKER, "capture_output": True, "text": True, "timeout": 600}
        done = subprocess.run([go, "build", "-o", made, "."], check=False, **build)
        assert done.returncode == 0, done.stderr
    return made


def run(asked: Asked, program: Path) -> Verdict:
    folder = Path(tempfile.mkdtemp(prefix="onceward-history-"))
    try:
        _deliver(asked, folder)
        return judge(program, folder, *(DYNAMODB if asked.store == "dynamodb" else ()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge(program: Path, folder: Path, *how: str) -> Verdict:
    """Return the verdict on the histories in a folder; ``how`` are options of the checker."""
    files = sorted(map(str, folder.glob("history-*")))
    done = subprocess.run([program, *how, "-timeout", "20s", *files], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    texts = [
        f"{one['key']} ({one['model']}):\n" + "".join(f"  {line}\n" for line in one["operations"])
        for one in found["illegal"][:MOST]
    ]
    if len(found["illegal"]) > MOST:
        texts.append(f"and {len(found['illegal']) - MOST} more\n")
    texts += [f"{key}: could not be judged in time\n" for key in found["undecided"]]
    told = found["kinds"].get("told", 0)
    return Verdict(found["keys"], found["operations"], found["unanswered"], told, "".join(texts))


def _deliver(asked: Asked, folder: Path) -> None:
    chance = random.Random(asked.seed)
    more = {}
    if asked.kind == "failover":
        assert asked.store in REPLICATED, f"{asked.store} has no replica here"
        more = {"replicated": True, "synchronous": asked.synchronous}
    ground = GROUNDS[asked.store](folder, Plan(asked.seed, asked.store, "run", [], loss=asked.loss), **more)
    crowd = {name: getattr(asked, name) for name in ("store", "seconds", "seed", "loss", "plant")}
    crowd |= {"url": ground.url, "folder": str(folder), "began": instant(), "lease": LEASES.get(asked.store, 0.6)}
    running: dict[int, subprocess.Popen] = {}
    try:
        for number in range(1 if ground.one_process else PROCESSES):
            running[number] = _start(crowd, number, skewed=asked.kind != "plain")
        begun = lambda: [file for file in folder.glob("history-*") if file.stat().st_size > 0]
        waiting.until(lambda: len(begun()) == len(running), PATIENCE)
        _strike(asked, crowd, ground, running, chance)
        for process in running.values():
            process.wait(asked.seconds + PATIENCE)
            assert process.returncode == 0, f"{asked}: a process ended with {process.returncode}"
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        ground.stop()


def _start(crowd: dict[str, object], number: int, *, skewed: bool) -> subprocess.Popen:
    clock = {}
    if skewed and number % 3 and library() is not None:
        clock = wrong_clock("+1h" if number % 3 == 1 else "-1h")
    keys = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{SUPPORT}", **keys, **clock}
    command = [sys.executable, "-m", "histories.crowd", json.dumps(crowd), str(number)]
    return watched(subprocess.Popen(command, cwd=SUPPORT, env=environment))


def _strike(
    asked: Asked, crowd: dict[str, object], ground: object, running: dict[int, subprocess.Popen], chance: random.Random
) -> None:
    """Stop, kill and restart what the run's kind says, until its time is over."""
    ends, third = instant() + int(asked.seconds * 1e9), instant() + int(asked.seconds * 1e9 / 3)
    struck, count = False, len(running)
    while instant() < ends:
        time.sleep(0.3 + 0.5 * chance.random())
        number = chance.choice(sorted(running))
        process = running[number]
        if asked.kind == "kills" and chance.random() < 0.4 and not ground.one_process:
            process.kill()
            process.wait()
            del running[number]
            if (left := (ends - instant()) / 1e9) > 1:
                running[count] = _start(crowd | {"seconds": left}, count, skewed=True)
            count += 1
        elif process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(crowd["lease"] * chance.choice((0.3, 1.5)))
            process.send_signal(signal.SIGCONT)
        if struck or instant() < third:
            continue
        struck = True
        if asked.kind == "restart":
            ground.restart()
        elif asked.kind == "failover":
            if not asked.synchronous:
                ground.hold_replication()
                time.sleep(asked.seconds / 6)
            ground.promote()
