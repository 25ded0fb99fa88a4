"""Servers that begin a session otherwise than the driver asked for and believes, or take no writes any more."""

import asyncio
import uuid

import pytest

from onceward import Once, StoreError
from onceward.pipelines.databases import Database
from servers.mysql import Mariadb
from stores.mysql_hands import name_of
from waiting import until


def with_worker(server):
    """Make a user without special rights: ``init_connect`` and ``read_only`` are for such users only."""
    server.sql("CREATE USER worker@'%'")
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO worker@'%'")
    return server


@pytest.fixture(scope="module")
def lent():
    made = with_worker(Mariadb())
    yield made
    made.stop()


def ledger_of(server):
    """Make a ledger, and return its URL for that user."""
    url = server.database(f"ledger_{uuid.uuid4().hex}")
    once = Once(url, name="n")
    once.run("made", int)
    once.close()
    return url.replace("root@", "worker@")


@pytest.fixture
def as_worker(lent):
    yield ledger_of(lent)
    lent.sql("SET GLOBAL init_connect = '', GLOBAL read_only = 0")


@pytest.fixture
def without_autocommit(lent, as_worker):
    """The URL of a server that switches autocommit off, as its manual shows, and tells the driver nothing of it."""
    lent.sql("SET GLOBAL init_connect = 'SET autocommit = 0'")
    return as_worker


@pytest.mark.sampled("awaited")
@pytest.mark.parametrize("kind", ["url", "awaited"])
def test_a_server_whose_sessions_begin_without_autocommit_keeps_what_was_recorded(without_autocommit, kind):
    url, ran = without_autocommit, []

    def used():
        """Run the handler in a process of its own, as far as the server sees."""
        once = Once(url, name="n")
        try:
            if kind == "awaited":
                return asyncio.run(once.run_async("k", asyncio.to_thread, lambda: ran.append(1) or len(ran)))
            return once.run("k", lambda: ran.append(1) or len(ran))
        finally:
            once.close()

    assert [used(), used()] == [1, 1]


def test_a_pipeline_commits_its_statements_on_such_a_server(without_autocommit, lent):
    name = name_of(without_autocommit)
    lent.sql("CREATE TABLE effects (value varchar(100))", database=name)
    database = Database(without_autocommit)
    with database.connection() as connection:
        database.run(connection, "INSERT INTO effects VALUES ('effect')")
    database.close()
    assert lent.sql("SELECT * FROM effects", database=name) == [("effect",)]


def check_texts(url):
    """A replay by asyncmy had question marks in place of what the charset has not, or could not be read."""
    once, text = Once(url, name="n"), "é😀漢"
    for key in ("k", "é"):
        for _ in range(2):
            assert asyncio.run(once.run_async(key, asyncio.sleep, 0, text)) == text
        assert once.run(key, pytest.fail) == text
    once.close()


@pytest.mark.sampled("latin1")
@pytest.mark.parametrize("charset", ["utf8mb3", "latin1"])
def test_a_server_that_sets_another_charset_changes_no_text(as_worker, lent, charset):
    lent.sql(f"SET GLOBAL init_connect = 'SET NAMES {charset}'")
    check_texts(as_worker)


@pytest.mark.sampled("utf8mb3")
@pytest.mark.parametrize("charset", ["utf8mb3", "latin1"])
def test_a_server_that_ignores_the_charset_that_is_asked_for_changes_no_text(charset):
    server = with_worker(Mariadb(character_set_client_handshake="OFF", character_set_server=charset))
    try:
        check_texts(ledger_of(server))
    finally:
        server.stop()


@pytest.mark.sampled("async")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_takes_no_writes_any_more_is_left(as_worker, lent, mode):
    """Another one may have its address by now."""
    once, name = Once(as_worker, name="n"), name_of(as_worker)
    connected = lambda: set(lent.sql("SELECT id FROM information_schema.processlist WHERE db = %s", name))
    with asyncio.Runner() as runner:

        def run(key):
            return once.run(key, lambda: 1) if mode == "sync" else runner.run(once.run_async(key, asyncio.sleep, 0, 1))

        assert run("k") == 1
        before = connected()
        lent.sql("SET GLOBAL read_only = 1")
        with pytest.raises(StoreError, match="replica or read-only") as told:
            run("other")
        assert told.value.transient
        lent.sql("SET GLOBAL read_only = 0")
        assert run("other") == 1
        assert connected()
        until(lambda: not before & connected())
        once.close()
