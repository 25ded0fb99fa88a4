"""What is MySQL's own: its texts and modes, snapshots, locks and deadlocks, and statements that commit by themselves."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from fixtures import closing_fixture
from onceward import Busy, Completed, Once, StoreError
from onceward.core.drivers import drive
from onceward.stores import open_store
from onceward.stores.capabilities import INSPECT, MIGRATE
from onceward.stores.mysql.queries import RowsQuery
from onceward.stores.mysql.schema import LONGEST_KEY
from onceward.testing.bench import claim_of
from servers.mysql import Mariadb
from stores.lost_cases import lose_the_answer_of
from stores.mysql_hands import name_of, place_of


@pytest.fixture
def connect(database):
    """What makes a connection of the caller's."""
    made = []

    def connect(**options):
        made.append(pymysql.connect(**place_of(database), **{"autocommit": True, **options}))
        return made[-1]

    yield connect
    for connection in made:
        if connection.open:
            connection.close()


other_server = closing_fixture(lambda: Mariadb(log_bin="binlog", server_id=7, innodb_flush_log_at_trx_commit=1))


def test_a_key_that_is_too_long_is_refused_and_never_cut(database):
    store, long = open_store(database), "n" * (LONGEST_KEY + 1)
    with pytest.raises(StoreError, match="characters, and may have"):
        drive(store.insert(claim_of(long)), store)
    refused, made = drive(store.insert_many([claim_of(long), claim_of(long[1:])]), store)
    assert isinstance(refused, StoreError)
    assert made.record.key == long[1:]
    store.close()


@pytest.mark.parametrize("awaited", [False, True])
def test_every_character_comes_back(once, awaited):
    once = once.using(name="n")
    texts = ["".join(map(chr, range(start, start + 0x800))) for start in range(0, 0x11000, 0x800) if start != 0xD800]
    texts += ["".join(map(chr, range(0x10F800, sys.maxunicode + 1))), '"', "\\", "\\u0041", "null", "[1]", '{"a": "b"}']
    for at, given in [*enumerate(texts)] * 2:
        if awaited:
            assert asyncio.run(once.run_async(str(at), asyncio.sleep, 0, given)) == given
        else:
            assert once.run(str(at), str, given) == given


def test_a_record_beyond_max_allowed_packet_is_told(once, sql):
    once.using(name="n").run("k", lambda: "done")
    sql("""UPDATE onceward SET result = REPEAT('"', 9000000)""")  # which is twice as long within a packed row
    with pytest.raises(StoreError, match="max_allowed_packet"):
        once.using(name="n").run("k", pytest.fail, "it ran again")


@pytest.mark.parametrize("mode", ["ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "", "TRADITIONAL,PIPES_AS_CONCAT"])
@pytest.mark.parametrize("zone", ["+05:30", "SYSTEM"])
def test_the_mode_and_the_time_zone_of_a_session_change_nothing(once, connect, effects, mode, zone):
    connection = connect()
    connection.query(f"SET sql_mode = '{mode}', time_zone = '{zone}'")
    value = ["it's", 'a "quoted" \\ thing\n', "é\0😀"]
    with once.transaction("k'\\\"", connection) as tx:
        connection.query("INSERT INTO effects VALUES ('effect')")
        tx.result = value
    with pytest.raises(Completed) as done, once.transaction("k'\\\"", connection):
        pass
    assert done.value.result == value
    ((record, now),) = once.ledger.records()
    assert abs(record.created_at - time.time()) < 60
    assert abs(now - record.updated_at) < 60


SETTINGS = {
    "NAMES latin1": "character set",
    "sql_mode = 'SIMULTANEOUS_ASSIGNMENT'": "SIMULTANEOUS_ASSIGNMENT",
    "timestamp = 1000000000": "set it to DEFAULT",  # its record would have expired, and the handler would run again
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("when", ["at first", "left", "in the body"])
def test_a_setting_that_would_change_texts_or_writes_commits_nothing(once, connect, effects, setting, when):
    connection = connect()
    if when != "at first":
        with once.transaction("first", connection):  # later ones do not look at the connection again
            pass
    if when != "in the body":
        connection.query(f"SET {setting}")
    error, told = (ValueError, SETTINGS[setting]) if when == "at first" else (StoreError, "SET timestamp")
    with pytest.raises(error, match=told), once.transaction("k", connection):
        connection.query(f"SET {setting}")
        connection.query("INSERT INTO effects VALUES ('effect')")
    assert effects() == []
    assert not connection.server_status & 1
    left = [record.attempts for record, _ in once.ledger.records() if record.status != "COMPLETED"]
    assert left == [1] * (when == "in the body")


def test_a_session_that_has_read_before_sees_what_was_completed_since(once, database, effects):
    engine = create_engine(database.replace("mysql://", "mysql+pymysql://"))
    once.using(name="n").run("warm", int)
    with Session(engine) as session:
        session.execute(text("SELECT * FROM onceward"))  # a snapshot without the key
        assert once.using(name="claim").run("k", lambda: "before") == "before"
        with pytest.raises(Completed) as done, once.using(name="claim").transaction("k", session):
            pytest.fail("it ran")
    assert done.value.result == "before"
    engine.dispose()


@pytest.mark.parametrize(
    "ends", [["CREATE TABLE other (n int)"], ["ROLLBACK", "BEGIN", "INSERT INTO effects VALUES ('later')"]]
)
def test_a_body_whose_statements_end_its_transaction_commits_nothing_more_with_the_record(once, connect, effects, ends):
    connection = connect()  # the server rolls back after a deadlock, and commits before DDL
    with pytest.raises(Exception, match="committed or rolled back"):
        with once.transaction("k", connection):
            connection.query("INSERT INTO effects VALUES ('effect')")
            for statement in ends:
                connection.query(statement)
    assert effects() == ["effect"] * (len(ends) == 1)
    assert [record.status for record, _ in once.ledger.records()] == ["PARKED"]


def test_transactions_and_batches_that_deadlock_make_each_effect_once(once, connect, sql, effects):
    """Eight threads take the same 12 keys in different orders, alone and in batches."""
    sql("CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL)")
    sql(f"INSERT INTO counters VALUES {', '.join(f'({n}, 0)' for n in range(12))}")
    made = [0] * 12
    lock = threading.Lock()

    def count(number):
        with lock:
            made[number] += 1

    batch = once.batch(count, key=str, name="batch")

    def work(seed):
        connection, order = connect(), [(seed * 5 + n * (1 if seed % 2 else -1)) % 12 for n in range(12)]
        left = list(order)
        while left:
            number = left.pop(0)
            try:
                with once.transaction(number, connection):
                    for other in (number, (number + 5) % 12):  # in an order that others do not keep
                        connection.query(f"UPDATE counters SET n = n + IF(id = {number}, 1, 0) WHERE id = {other}")
            except Completed:
                pass
            except (Busy, pymysql.OperationalError, StoreError) as error:
                if not isinstance(error, Busy) and "1213" not in str(error) and "1205" not in str(error):
                    raise
                left.append(number)
        left = list(order)
        while left:
            outcomes = batch.run(left)
            left = [item for item, outcome in zip(left, outcomes, strict=True) if not outcome.ok]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sql("SELECT n FROM counters") == [(1,)] * 12
    assert made == [1] * 12


@pytest.mark.parametrize("what", ["claims", "ends"])
def test_who_waited_knows_its_own_write_again_when_the_answer_to_a_batch_is_lost(what, through, proxy):
    sleep = RowsQuery("SELECT SLEEP(0.3)")
    assert set(lose_the_answer_of(what, f"{through}?lanes=1", proxy, sleep).values()) == {1}


def test_the_documented_rights_are_enough(database, sql, effects):
    Once(database, name="n").run("made", int)
    schema = name_of(database)
    user = f"w{schema[-20:]}"
    sql(f"CREATE USER {user}@'%'")
    sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.onceward TO {user}@'%'")
    sql(f"GRANT SELECT, UPDATE ON {schema}.onceward_meta TO {user}@'%'")
    sql(f"GRANT INSERT ON {schema}.effects TO {user}@'%'")
    url = database.replace("root@", f"{user}@")
    once = Once(url, name="n", lease=60)
    assert [once.run("k", lambda: 1) for _ in range(2)] == [1, 1]
    with once.claim("c") as claim:
        claim.extend()
    once.acquire("r").release("no")
    once.acquire("r").park("no")
    with pymysql.connect(**place_of(url), autocommit=True) as connection:
        with once.transaction("t", connection):
            connection.query("INSERT INTO effects VALUES ('effect')")
    assert [one.value for one in once.batch(lambda key: key, key="key", name="b").run(["a", "b"])] == ["a", "b"]
    assert len(list(once.ledger.records())) == 7
    assert len(list(once.ledger.records(status="PARKED"))) == 1
    once.ledger.clear("n:r")
    once.ledger.purge()
    assert not [part for part in drive(MIGRATE.require(once.store)(), once.store) if part.made]
    assert effects() == ["effect"]
    once.close()


def test_a_making_that_was_interrupted_is_completed_by_the_next(database, sql):
    Once(database, name="n").run("k", lambda: "kept")
    sql("DROP TABLE onceward_meta")  # it had come only so far
    once = Once(database)
    store = open_store(database)
    for wanted in (True, False):
        parts = {part.what: part.made for part in drive(MIGRATE.require(store)(), store)}
        assert parts == {"table `onceward`": False, "table `onceward_meta`": wanted, "its columns and indexes": wanted}
    assert len(list(once.ledger.records())) == 1
    once.close()
    store.close()


def test_a_server_of_its_own(other_server, database, connect):
    """Another server's connection is refused; a duplicate writes nothing; after a kill, the ledger goes on; doctor reads it."""
    there = Once(other_server.database("ledger"), name="n")
    there.run("k", lambda: "done")
    ours = connect()
    with pytest.raises(ValueError, match="another server"), there.transaction("t", ours):
        pytest.fail("it ran")

    def written():
        names = "'Innodb_os_log_written', 'Binlog_bytes_written'"
        return other_server.sql(
            f"SELECT variable_value FROM information_schema.global_status WHERE variable_name IN ({names})"
        )

    for _ in range(20):  # the server itself flushes now and then
        before = written()
        for _ in range(20):
            assert there.run("k", pytest.fail) == "done"
        if written() == before:
            break
    else:
        pytest.fail("duplicates write to the log")
    other_server.crash()
    other_server.start()
    assert there.run("k", pytest.fail) == "done"
    assert there.run("other", lambda: "new") == "new"
    store = open_store(other_server.url.replace("/test", "/ledger"))
    found = {finding.check: finding.level for finding in INSPECT.require(store)().findings()}
    assert found["failover"] == found["innodb_doublewrite"] == "warning"
    assert "clock" not in found
    other_server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    found = {finding.check: finding.level for finding in INSPECT.require(store)().findings()}
    assert found["durability"] == "error"
    store.close()
    there.close()
