"""Transactions in MariaDB: the same cases as in PostgreSQL; and their BEGIN, which is sent with the claim, as one block or, as to MySQL, one by one."""

import pymysql
import pytest

from fixtures import closing_fixture
from onceward import Busy, Completed, Once
from onceward.stores.mysql import schema
from stores.cut_cases import *  # noqa: F403 - its tests run here
from stores.lost_cases import *  # noqa: F403 - as above
from stores.mysql_hands import HANDS, place_of
from stores.transaction_cases import *  # noqa: F403 - as above

pytestmark = pytest.mark.sampled(hand=2, waiting=1, blocking=1)


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture(params=["pymysql", "Session", "Django"])
def blocking(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture(params=["block", "statements"])
def begun(request, database, monkeypatch):
    if request.param == "statements":
        as_mysql = schema.MYSQL._replace(mariadb=False)
        monkeypatch.setattr(schema.Flavor, "collation", "utf8mb4_nopad_bin")  # MariaDB has not the other one
        monkeypatch.setattr(schema, "flavor_of", lambda _: as_mysql)
    made = Once(database, name="n")
    yield made
    made.close()


connection = closing_fixture(lambda database: pymysql.connect(**place_of(database), autocommit=True))
# Somebody else's connection, which holds what it has written.
holder = closing_fixture(lambda database: pymysql.connect(**place_of(database), autocommit=False))


def value(connection, expression):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {expression}")
        return cursor.fetchone()[0]


def act(connection):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES ('effect')")


def test_a_life_of_a_key_leaves_no_transaction_open(begun, connection, effects):
    with pytest.raises(ZeroDivisionError), begun.transaction("k", connection):
        act(connection)
        raise ZeroDivisionError
    assert (effects(), value(connection, "@@in_transaction")) == ([], 0)
    with begun.transaction("k", connection) as transaction:
        assert value(connection, "@@in_transaction") == 1
        act(connection)
        transaction.result = "made"
    assert (effects(), value(connection, "@@in_transaction")) == (["effect"], 0)
    ((kept, _),) = begun.ledger.records()
    assert (transaction.claim.record, kept.result) == (kept, '"made"')
    with pytest.raises(Completed), begun.transaction("k", connection):
        act(connection)
    assert (effects(), value(connection, "@@in_transaction")) == (["effect"], 0)


def test_a_claim_of_a_locked_key_leaves_no_transaction_open(begun, connection, holder, effects):
    with begun.transaction("other", connection):
        pass
    waits = value(connection, "@@SESSION.innodb_lock_wait_timeout")
    with holder.cursor() as cursor:
        cursor.execute(
            "INSERT INTO onceward (`key`, status, owner, fence, beat, lease_until, attempts, created_at, updated_at, write_id) "
            "VALUES ('n:k', 'IN_PROGRESS', 'x', 1, 0, 0, 1, 0, 0, 1)"
        )
    with pytest.raises(Busy), begun.transaction("k", connection):
        act(connection)
    assert value(connection, "@@in_transaction") == 0
    assert value(connection, "@@SESSION.innodb_lock_wait_timeout") == waits
    holder.rollback()
    with begun.transaction("k", connection):
        act(connection)
    assert effects() == ["effect"]
