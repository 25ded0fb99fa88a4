"""Times the dashboard's pages on a ledger with many records, and shows how the database finds what the first page needs.

``python benchmarks/dashboard.py sqlite:////tmp/ten.db 10000000`` fills an empty ledger first; without a number, the ledger stays
as it is. Also ``postgresql://user@host/db``. Of 10,000 records one is parked, one was given back, and 0.2 are lapsed.
"""

import argparse
import os
import sqlite3
import sys
import time
from pathlib import Path
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.selections import ByKey
from onceward.core.views import Criteria
from onceward.stores.capabilities import SURVEY
from web.dashboards import dashboard_of

COLUMNS = (
    "key, status, owner, fence, beat, lease_until, attempts, result, error, created_at, expires_at, updated_at, worker"
)
ROWS = """SELECT {name}, CASE WHEN i % 10000 = 17 THEN 'PARKED' WHEN i % 10000 = 18 THEN 'RELEASED'
WHEN i % 50000 = 19 THEN 'IN_PROGRESS' ELSE 'COMPLETED' END, 'owner-' || i, 1000000 + i, 1, {then}, 1,
CASE WHEN i % 10000 NOT IN (17, 18, 19) THEN '{{"receipt":' || i || '}}' END,
CASE WHEN i % 10000 IN (17, 18) THEN 'CardDeclined: insufficient funds' END, {then}, {later}, {then}, 'host/1' FROM {numbers}"""
PAGES = (
    "/",
    "/records?status=PARKED",
    "/records",
    "/records?prefix=shop.mail:",
)


def fill_sqlite(path, count):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    now = time.time() - 3600
    third = count // 3 + 1
    name = f"printf('shop.%s:order-%08d', substr('chargemail  ship  ', 1 + 6 * (i / {third}), 4), i)"
    numbers = f"(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}) SELECT i FROM n)"
    rows = ROWS.format(name=name, then=now, later=now + 1e6, numbers=numbers)
    connection.execute(f"INSERT INTO onceward ({COLUMNS}) {rows}")
    connection.close()


def fill_postgres(url, count):
    import psycopg

    name = (
        f"'shop.' || (array['charge', 'mail', 'ship'])[1 + i / {count // 3 + 1}] || ':order-' || lpad(i::text, 8, '0')"
    )
    then, later = "now() - interval '1 hour'", "now() + interval '14 days'"
    rows = ROWS.format(name=name, then=then, later=later, numbers=f"generate_series(0, {count - 1}) i")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"INSERT INTO onceward ({COLUMNS}) {rows}")
        connection.execute("VACUUM ANALYZE onceward")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("count", type=int, nargs="?")
    told = parser.parse_args()
    once = Once(told.url, name="seed")
    if told.count is not None:
        once.acquire("first").complete(1)  # makes the ledger
        if told.url.startswith("sqlite:"):
            fill_sqlite(once.store.path, told.count)
        else:
            fill_postgres(told.url, told.count)
    survey = drive(SURVEY.require(once.store)(), once.store)
    print(f"{survey.total:,} records, load {os.getloadavg()[0]:.1f}; {dict(survey.counts)}")
    with dashboard_of(told.url) as base:
        for page in PAGES:
            times = []
            for _ in range(3):
                began = time.perf_counter()
                urlopen(base + page).read()
                times.append(f"{(time.perf_counter() - began) * 1e3:.0f} ms")
                time.sleep(2.1)  # the counts are kept for two seconds
            print(f"{page:<32} {', '.join(times)}")
    if told.url.startswith("postgresql:"):
        explain_postgres(told.url)
    else:
        explain_sqlite(once)
    once.close()


def explain_sqlite(once):
    connection = sqlite3.connect(once.store.path)
    statements = []
    connection.set_trace_callback(statements.append)
    for steps in (SURVEY.require(once.store)(), once.store.select(ByKey(criteria=Criteria(("PARKED",))), None, 200)):
        next(steps).run(connection, time.time())
    connection.set_trace_callback(None)
    for statement in statements:
        print("\n" + " ".join(statement.split()).replace("+t.", "t.")[:300])
        for *_, line in connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
            print("   ", line)


def explain_postgres(url):
    import psycopg

    survey = "SELECT status, count(*), count(*) FILTER (WHERE lease_until <= now()) FROM onceward WHERE status <> 'COMPLETED' GROUP BY status"
    parked = (
        "SELECT key, status = 'PARKED' AS hit FROM onceward WHERE status <> 'COMPLETED' AND key > '' ORDER BY key LIMIT 5000",
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (survey, *parked):
            print(f"\n{statement}")
            for (line,) in connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {statement}"):
                print("   ", line)


if __name__ == "__main__":
    main()
