"""The ledger's own reading of PyMySQL's answers, beside PyMySQL's; and records as one packed column."""

import asyncio
import sys

import pymysql
import pytest

from mysql_hands import place_of
from mysql_servers import Mariadb
from onceward import StoreError
from onceward.stores.mysql.wire import LedgerWire

QUERIES = [
    "SELECT 1",
    "SELECT 1, NULL, 'text', '', 1.50, 2e0, 9007199254740993, -1",
    "SELECT * FROM (SELECT 1 a UNION SELECT 2 UNION SELECT NULL) t",
    "SELECT 1 FROM DUAL WHERE false",
    "DO 0",
    "BEGIN NOT ATOMIC SELECT 1; SELECT 2, 3; DO 0; END",
    "SHOW VARIABLES LIKE 'version%'",
    *[f"SELECT REPEAT('é', {size}), 7" for size in (125, 126, 32767, 32768, 60_000, 5_000_000)],
    "SELECT REPEAT('a', 16777216 - 10), 7",
    *[f"SELECT REPEAT('a', {2**24 - 1 - 4 - more}), '', 7" for more in range(8)],
]


@pytest.fixture(scope="module")
def roomy():
    """A server that sends what takes several packets."""
    made = Mariadb(max_allowed_packet="64M")
    yield made
    made.stop()


@pytest.fixture
def wires(roomy):
    options = {**place_of(roomy.url), "autocommit": True, "charset": "utf8mb4", "read_timeout": 60, "write_timeout": 60}
    made = LedgerWire(**options), pymysql.connect(**options)
    yield made
    for wire in made:
        if wire.open:
            wire.close()


def rows_of(connection, statement):
    """PyMySQL's own."""
    found = []
    with connection.cursor() as cursor:
        cursor.execute(statement)
        found.extend(cursor.fetchall())
        while cursor.nextset():
            found.extend(cursor.fetchall())
    return found


@pytest.mark.parametrize("statement", QUERIES)
def test_it_reads_what_pymysql_reads(wires, statement):
    ours, theirs = wires
    assert [tuple(row) for row in ours.rows([statement])] == rows_of(theirs, statement)
    assert ours.rows(["SELECT 42"]) == [[42]]  # it has read the answer to its end


def test_an_error_is_the_drivers_and_the_connection_goes_on(wires):
    ours, _ = wires
    for refused in ("SELECT nothing", "BEGIN NOT ATOMIC SELECT 1; SELECT * FROM nowhere; END"):
        with pytest.raises(pymysql.MySQLError, match=r"nothing|nowhere"):
            ours.rows([refused])
        assert ours.rows(["SELECT 42"]) == [[42]]


def test_a_lost_connection_is_told_at_once(wires, roomy):
    ours, _ = wires
    roomy.sql(f"KILL {ours.thread_id()}")
    with pytest.raises(pymysql.OperationalError):
        ours.rows(["SELECT 42"])
    assert not ours.open


@pytest.mark.parametrize("awaited", [False, True])
def test_every_character_comes_back(once, awaited):
    once = once.using(name="n")
    texts = ["".join(map(chr, range(start, start + 0x800))) for start in range(0, 0x11000, 0x800) if start != 0xD800]
    texts += ["".join(map(chr, range(0x10F800, sys.maxunicode + 1))), '"', "\\", "\\u0041", "null", "[1]", '{"a": "b"}']

    def handler(at):
        return texts[at]

    async def handler_async(at):
        return texts[at]

    for at in [*range(len(texts))] * 2:
        got = asyncio.run(once.run_async(str(at), handler_async, at)) if awaited else once.run(str(at), handler, at)
        assert got == texts[at]


def test_a_record_beyond_max_allowed_packet_is_told(once, sql):
    once.using(name="n").run("k", lambda: "done")
    sql("""UPDATE onceward SET result = REPEAT('"', 9000000)""")  # which is twice as long within a packed row
    with pytest.raises(StoreError, match="max_allowed_packet"):
        once.using(name="n").run("k", pytest.fail, "it ran again")
