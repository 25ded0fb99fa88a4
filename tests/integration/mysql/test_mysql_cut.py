"""Transactions in MariaDB that are cancelled, interrupted or left behind: the same cases as in PostgreSQL."""

import asyncio

import pytest

from onceward.stores.sql.session import SqlSession
from stores.cut_cases import *  # noqa: F403 - its tests run here
from stores.cut_cases import records
from stores.mysql_hands import HANDS

pytestmark = pytest.mark.sampled(waiting=1, blocking=1)


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture(params=["pymysql", "Session", "Django"])
def blocking(request, database):
    return HANDS[request.param](database, "effects")


def test_an_interrupt_right_before_the_commit_is_no_fault_of_the_body(once, blocking, effects, monkeypatch):
    exchanged, awaited = SqlSession.exchange, SqlSession.exchange_async

    def strike(request):
        if request == "finish":
            raise ZeroDivisionError("struck")  # a time limit, as far as we know

    def struck(self, request):
        strike(request)
        return exchanged(self, request)

    async def struck_async(self, request):
        strike(request)
        return await awaited(self, request)

    async def main():
        async with blocking.connection() as connection:
            monkeypatch.setattr(SqlSession, "exchange", struck)
            monkeypatch.setattr(SqlSession, "exchange_async", struck_async)
            with pytest.raises(ZeroDivisionError, match="struck"):
                async with blocking.within(once.transaction("k", connection)):
                    await blocking.act(connection)
            assert blocking.is_idle(connection)

    asyncio.run(main())
    assert (effects(), records(once)) == ([], [("RELEASED", 1)])
