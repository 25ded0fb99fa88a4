"""The connections of pipelines to SQL databases, over servers that restart, are silent or vanish."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from mysql_servers import Mariadb
from onceward.pipelines import databases
from onceward.pipelines.databases import Database
from postgres_servers import Postgres
from processes import PATIENCE


def one(database):
    with database.connection() as connection:
        return database.run(connection, "SELECT 1 AS n")["rows"]


def test_a_postgresql_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setitem(databases._POSTGRES, "connect_timeout", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database = Database(f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x")
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            one(database)


@pytest.mark.parametrize("kind", [Postgres, Mariadb])
def test_connections_that_a_restart_has_ended_fail_no_message(monkeypatch, kind):
    monkeypatch.setattr(databases, "_IDLE", 0.0)
    server = kind()
    try:
        database, meet = Database(server.url), threading.Barrier(3)

        def connect(_):
            with database.connection():
                meet.wait(PATIENCE)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(connect, range(3)))
        server.crash()
        server.start()
        assert one(database) == [{"n": 1}]
        database.close()
    finally:
        server.stop()


def test_a_server_that_has_vanished_holds_a_message_for_one_idle_connection_and_not_for_each(monkeypatch):
    asked, closed = [], []

    class Silent:
        def cursor(self):
            asked.append(self)
            raise TimeoutError  # after a long time

        def close(self):
            closed.append(self)

    database, fresh = Database("mysql://root@127.0.0.1/test"), Silent()
    monkeypatch.setattr(database, "_connected", lambda: fresh)
    database._idle.extend((float("-inf"), Silent()) for _ in range(5))
    with database.connection() as connection:
        assert connection is fresh
    assert len(asked) == 1
    assert len(closed) == 5
