"""A ledger on connections and pools of the caller's own passes the conformance suite: psycopg, blocking and not, and asyncpg."""

import asyncio
import contextlib
import re

import asyncpg
import psycopg
import psycopg_pool
import pytest

from onceward.stores.postgres import open_ledger
from onceward.testing.conformance import CHECKS, Bench
from postgres_servers import Postgres


async def _open_psycopg(url, path):
    options = f"-csearch_path={path}"
    pool = psycopg_pool.AsyncConnectionPool(url, kwargs={"options": options}, min_size=1, max_size=4, open=False)
    await pool.open()
    return pool


async def _connect_psycopg(url, path):
    return await psycopg.AsyncConnection.connect(url, options=f"-csearch_path={path}", autocommit=True)


async def _open_asyncpg(url, path):
    return await asyncpg.create_pool(url, server_settings={"search_path": path}, min_size=1, max_size=4)


async def _connect_asyncpg(url, path):
    return await asyncpg.connect(url, server_settings={"search_path": path}, statement_cache_size=0)


ASYNC = {
    "psycopg pool": _open_psycopg,
    "psycopg connection": _connect_psycopg,
    "asyncpg pool": _open_asyncpg,
    "asyncpg connection": _connect_asyncpg,
}


@pytest.fixture
def place(moved):
    """The server's URL, the ledger's schema, its search path, and what moves its clock."""
    url, move = moved
    schema = re.search(r"schema=(\w+)", url)[1]
    return url.partition("?")[0], schema, f"{schema},pg_catalog", move


@pytest.mark.parametrize("postgres", [Postgres], indirect=True, ids=["15"])
@pytest.mark.parametrize("pool", ASYNC)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_ledger_on_asynchronous_connections_conforms(check, pool, place):
    url, schema, path, move = place
    bench = Bench(lambda _: None, mode="async", advance=move)
    given = bench._runner.run(ASYNC[pool](url, path))
    bench.store = bench.other = open_ledger(given, schema=schema)
    try:
        check.function(bench)
    finally:
        bench._runner.run(_closing(given))
        bench.close()


async def _closing(given):
    await asyncio.wait_for(given.close(), 10)


@pytest.mark.parametrize("postgres", [Postgres], indirect=True, ids=["15"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("pool", ["pool", "connection"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_ledger_on_blocking_connections_conforms(check, pool, mode, place):
    url, schema, path, move = place
    options = f"-csearch_path={path}"
    if pool == "pool":
        given = psycopg_pool.ConnectionPool(url, kwargs={"options": options}, min_size=1, max_size=4, open=True)
    else:
        given = psycopg.connect(url, options=options, autocommit=True)
    with contextlib.closing(given):
        check.run(Bench(lambda _: open_ledger(given, schema=schema), mode=mode, advance=move))
