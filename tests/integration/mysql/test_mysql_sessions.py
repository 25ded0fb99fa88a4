"""Servers: their versions, URLs and TLS, those that begin a session otherwise than the driver believes, and one that freezes."""

import asyncio
import os
import signal
import tempfile
import threading
import uuid
from pathlib import Path

import pymysql
import pytest

from faults import processes
from fixtures import closing_fixture
from onceward import Once, StoreError
from onceward.pipelines.databases import Database
from onceward.stores.mysql.schema import flavor_of
from servers.mysql import Mariadb
from servers.needs import certificate
from stores.lost_cases import of_two_seconds
from stores.mysql_hands import HANDS, name_of
from tables import each
from waiting import until


def with_worker(server):
    """Make a user without special rights: ``init_connect`` and ``read_only`` are for such users only."""
    server.sql("CREATE USER worker@'%'")
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO worker@'%'")
    return server


lent = closing_fixture(lambda: with_worker(Mariadb()), scope="module")


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


@pytest.mark.parametrize("charset", ["utf8mb3", "latin1"])
def test_a_server_that_sets_another_charset_changes_no_text(as_worker, lent, charset):
    """A replay by asyncmy had question marks in place of what the charset has not, or could not be read."""
    lent.sql(f"SET GLOBAL init_connect = 'SET NAMES {charset}'")
    once, text = Once(as_worker, name="n"), "é😀漢"
    for key in ("k", "é"):
        for _ in range(2):
            assert asyncio.run(once.run_async(key, asyncio.sleep, 0, text)) == text
        assert once.run(key, pytest.fail) == text
    once.close()


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


@pytest.mark.sampled("async")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_outcome_waits_for_an_account_that_is_full(as_worker, lent, mode):
    name = name_of(as_worker)
    once = Once(f"{as_worker}?lanes=1", name="n")

    def fill():
        """Have somebody else take the account's last connection for a second, in place of ours."""
        lent.sql("GRANT USAGE ON *.* TO worker@'%' WITH MAX_USER_CONNECTIONS 1")
        for (number,) in lent.sql("SELECT id FROM information_schema.processlist WHERE user = 'worker'"):
            lent.sql(f"KILL {number}")
        until(lambda: not lent.sql("SELECT 1 FROM information_schema.processlist WHERE user = 'worker'"))
        other = pymysql.connect(host="127.0.0.1", port=lent.port, user="worker", database=name)
        threading.Timer(1.0, other.close).start()
        return "made"

    try:
        if mode == "sync":
            assert once.run("k", fill) == "made"
        else:
            assert asyncio.run(once.run_async("k", asyncio.to_thread, fill)) == "made"
    finally:
        lent.sql("GRANT USAGE ON *.* TO worker@'%' WITH MAX_USER_CONNECTIONS 0")
    assert once.run("k", pytest.fail) == "made"
    once.close()


@pytest.fixture(scope="module")
def secured():
    """The URL of a user who must use TLS, and the path of the certificate that signs the server's."""
    with tempfile.TemporaryDirectory() as folder:
        chain, key = certificate(Path(folder))
        for path, mode in ((Path(folder), 0o755), (chain, 0o644), (key, 0o644)):
            path.chmod(mode)  # the server is another user's
        server = Mariadb(ssl_cert=chain, ssl_key=key)
        server.sql("CREATE USER worker@'%' REQUIRE SSL")
        server.sql("GRANT ALL ON test.* TO worker@'%'")
        yield server.url.replace("root@", "worker@"), chain
        server.stop()


@pytest.mark.sampled("sync")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_tls_is_checked(secured, mode):
    url, chain = secured

    def run(options):
        once = Once(f"{url}?{options}", name="n")
        try:
            if mode == "sync":
                return once.run("k", lambda: "made")
            return asyncio.run(once.run_async("k", asyncio.sleep, 0, "made"))
        finally:
            once.close()

    assert run(f"ca={chain}") == "made"
    assert run("tls=on") == "made"
    with tempfile.TemporaryDirectory() as folder, pytest.raises(StoreError, match="certificate verify failed"):
        run(f"ca={certificate(Path(folder))[0]}")


@each(
    ("says", "mariadb", "version"),
    [("5.5.5-10.6.4-MariaDB-0+deb12u1", True, (10, 6, 4)), ("8.4.3-cloud", False, (8, 4, 3))],
)
def test_a_server_is_known_by_what_it_says(says, mariadb, version):
    assert flavor_of(says) == (mariadb, version)


@each(
    ("url", "told"),
    [
        ("mysql://u@h", "name the database"),
        ("mysql://u@h/d?colour=red", "is no option"),
        ("mysql://u@h/d?lanes=0", "lanes a number of at least 1"),
        ("mysql://u@h/d?lanes=abc", "lanes a number of at least 1"),
        ("mysql://u:geheim@h:x/d", "port"),
        ("mysql://u@h/d?table=Upper", "lower-case"),
    ],
)
def test_a_wrong_url_is_refused_and_hides_its_password(url, told):
    with pytest.raises(ValueError, match=told) as error:
        Once(url)
    assert "geheim" not in str(error.value)


@pytest.fixture(params=["pymysql", "asyncmy", "Session", "AsyncSession", "Django"])
def hand(request, lent):
    name = f"ledger_{uuid.uuid4().hex}"
    url = lent.database(name)
    lent.sql("CREATE TABLE effects (value varchar(100))", database=name)
    return HANDS[request.param](url, "effects")


hasty = closing_fixture(lambda hand: of_two_seconds(hand.url, f"{hand.url}?timeout=2"))


@pytest.fixture
def freeze(lent):
    """Freeze the server; it goes on much later, so that a test without a limit fails."""
    timer = threading.Timer(60, os.kill, [lent.pid, signal.SIGCONT])

    def frozen():
        processes.freeze(lent.pid)
        timer.start()

    yield frozen
    timer.cancel()
    os.kill(lent.pid, signal.SIGCONT)


@pytest.mark.sampled(hand=1)
@pytest.mark.parametrize("at", ["commit", "claim"])
async def test_a_transaction_on_a_frozen_server_ends_in_time(hasty, hand, freeze, lent, at):
    async with hand.connection() as connection:
        async with hand.within(hasty.transaction("before", connection)):
            await hand.act(connection)
        if at == "claim":
            freeze()
        with pytest.raises(StoreError):
            async with hand.within(hasty.transaction("k", connection)):
                assert at == "commit", "nothing was claimed"
                await hand.act(connection)
                freeze()
    assert processes.state_of(Path(f"/proc/{lent.pid}")) == "T", "it is still frozen"
