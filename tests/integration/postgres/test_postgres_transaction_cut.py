"""Transactions that are cancelled, interrupted or left behind, and how much is sent for one."""

import contextlib

import psycopg
import pytest

from onceward import Completed
from stores.cut_cases import *  # noqa: F403 - its tests run here
from stores.postgres_hands import HANDS

pytestmark = pytest.mark.sampled(waiting=1, blocking=1)


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, postgres, table):
    return HANDS[request.param](postgres.url, table)


@pytest.fixture(params=["psycopg", "psycopg2", "Session", "Django"])
def blocking(request, postgres, table):
    return HANDS[request.param](postgres.url, table)


def test_a_transaction_adds_two_statements(once, postgres, table, tmp_path):
    def asked(path):
        """Return the first word of each statement in libpq's trace."""
        told = [line.split("\t") for line in path.read_text().splitlines()]
        sent = [line[4].replace('""', "").partition('"')[2] for line in told if line[3] in {"Query", "Parse"}]
        return [text.split()[0].strip('"') for text in sent]

    def act(connection):
        with once.transaction("k", connection):
            connection.execute(f"INSERT INTO {table} VALUES ('effect')")

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        with once.transaction("first", connection):  # whose connection is looked at
            pass
        seen = []
        for turn in ("first", "duplicate"):
            path = tmp_path / turn
            with path.open("w") as trace:
                connection.pgconn.trace(trace.fileno())
                with contextlib.suppress(Completed):
                    act(connection)
                connection.pgconn.untrace()
            seen.append(asked(path))
    assert seen == [["BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT"], ["BEGIN", "INSERT", "WITH", "ROLLBACK"]]
