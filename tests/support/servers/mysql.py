"""MariaDB servers for tests, version 10.11 of Debian."""

import shutil
import subprocess
from collections.abc import Mapping

from servers.needs import missing
from servers.server import Server

USER = "root"
_PLAIN = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
_SMALL = {
    "innodb_buffer_pool_size": "32M",
    "innodb_log_file_size": "16M",
    "innodb_buffer_pool_dump_at_shutdown": "OFF",
    "innodb_buffer_pool_load_at_startup": "OFF",
    "performance_schema": "OFF",
    "skip_name_resolve": "ON",
    "max_connections": 300,
    "key_buffer_size": "1M",
    "innodb_file_per_table": "OFF",
    "innodb_flush_log_at_trx_commit": 2,  # what it has answered survives its own death, but not the host's
    "innodb_doublewrite": "OFF",
    "sync_frm": "OFF",
    "aria_pagecache_buffer_size": "8M",
}


class Mariadb(Server):
    owner = "mysql"

    def __init__(self, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        self._environment = _PLAIN | dict(environment or {})
        self._settings = _SMALL | settings
        self._program = shutil.which("mariadbd", path="/usr/sbin:/usr/bin")
        if self._program is None:
            missing("MariaDB is not installed: apt-get install mariadb-server")
        super().__init__()
        make = ["mariadb-install-db", "--no-defaults", f"--datadir={self._scratch / 'data'}", "--skip-test-db"]
        make += ["--auth-root-authentication-method=normal", f"--innodb-log-file-size={_SMALL['innodb_log_file_size']}"]
        # Each server that starts deletes what others have in a common TMPDIR.
        run = {"cwd": self._scratch, "env": _PLAIN | {"TMPDIR": str(self._scratch)}, **self._user}
        made = subprocess.run(make, check=False, capture_output=True, text=True, **run)
        assert made.returncode == 0, made.stdout + made.stderr
        self.start()
        self.sql("CREATE DATABASE IF NOT EXISTS test", database=None)

    @property
    def url(self) -> str:
        return f"mysql://{USER}@127.0.0.1:{self.port}/test"

    def _command(self):
        settings = {"port": self.port, "bind_address": "127.0.0.1", "socket": self._scratch / "socket"}
        settings["tmpdir"] = self._scratch  # which another server, when it starts, does not clear
        options = [f"--{name.replace('_', '-')}={value}" for name, value in (settings | self._settings).items()]
        return [self._program, "--no-defaults", f"--datadir={self._scratch / 'data'}", *options]

    def answers(self) -> bool:
        import pymysql

        try:
            self.sql("SELECT 1", database=None)
        except pymysql.OperationalError:
            return False
        return True

    def sql(self, statement: str, *values: object, database: str | None = "test") -> list[tuple]:
        import pymysql

        where = {"host": "127.0.0.1", "port": self.port, "user": USER, "database": database}
        with pymysql.connect(**where, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def database(self, name: str) -> str:
        self.sql(f"CREATE DATABASE {name}")
        return f"mysql://{USER}@127.0.0.1:{self.port}/{name}"


class Replicated(Mariadb):
    """A server that keeps a log for replicas, and answers a COMMIT when a replica has it, if there is one."""

    def __init__(self) -> None:
        master = {"enabled": "ON", "timeout": 600_000, "wait_no_slave": "OFF", "wait_point": "AFTER_SYNC"}
        settings = {f"rpl_semi_sync_master_{name}": value for name, value in master.items()}
        super().__init__(log_bin="binlog", server_id=1, **settings)


class MariadbReplica(Mariadb):
    """A replica of a server, until it is promoted."""

    def __init__(
        self, primary: Mariadb, environment: Mapping[str, str] | None = None, *, synchronous: bool = True
    ) -> None:
        semi = "ON" if synchronous else "OFF"
        super().__init__(environment, server_id=2, read_only="ON", rpl_semi_sync_slave_enabled=semi)
        if not synchronous:
            primary.sql("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
        where = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = '{USER}'"
        self.sql(f"CHANGE MASTER TO {where}, MASTER_USE_GTID = slave_pos")
        self.sql("START SLAVE")
        follows = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"
        here = "SHOW TABLES LIKE 'effects'"
        self.until(lambda: self.sql(here) and (not synchronous or primary.sql(follows)[0][1] == "1"))

    def hold_replication(self) -> None:
        """Take no more from the primary."""
        self.sql("STOP SLAVE IO_THREAD")

    def promote(self) -> None:
        """Make it the primary, when it has done all that it got."""
        self.sql("STOP SLAVE IO_THREAD")
        done = "Slave has read all relay log"
        state = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE %s"
        self.until(lambda: self.sql(state, f"{done}%") == [(1,)])
        self.sql("STOP SLAVE")
        self.sql("RESET SLAVE ALL")
        self.sql("SET GLOBAL read_only = OFF")
