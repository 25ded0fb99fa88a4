"""A PostgreSQL ledger of ten million records: first calls, finding, counting, purging, sizes.

    python benchmarks/postgres_large.py postgresql://user@host/scratch [RECORDS]

It fills the ledger if it has fewer records. That takes four minutes and 4 GB. The database must be one to throw away.
"""

import hashlib
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable

import psycopg

from onceward import Once
from onceward.core.drivers import drive
from onceward.stores.capabilities import MIGRATE

FILL = """
INSERT INTO onceward (key, status, owner, fence, beat, lease_until, attempts, result, error, created_at, expires_at, updated_at, worker)
SELECT 'shop.charge:' || md5(n::text), status, md5(n::text), n, 1, at, 1,
  CASE status WHEN 'COMPLETED' THEN '{"receipt": "r-' || n || '", "amount": 1999, "currency": "EUR"}' END,
  CASE WHEN status IN ('PARKED', 'RELEASED') THEN 'CardDeclined: the bank said no' END,
  at, CASE WHEN status <> 'PARKED' THEN at + interval '30 days' END, at, 'web-3/4711'
FROM (SELECT n, now() - (%(n)s - n) * interval '0.1 s' AS at, CASE WHEN n %% 5000 = 1 THEN 'PARKED'
  WHEN n %% 3333 = 2 THEN 'RELEASED' WHEN n %% 20000 = 3 THEN 'IN_PROGRESS' ELSE 'COMPLETED' END AS status
  FROM generate_series(1, %(n)s) n) made
"""
EXPIRE = """
UPDATE onceward SET expires_at = now() - interval '1 hour' WHERE status = 'COMPLETED'
AND key IN (SELECT key FROM onceward WHERE key > %s ORDER BY key LIMIT 100000)
"""
SIZES = "SELECT relname, pg_size_pretty(pg_relation_size(oid)) FROM pg_class WHERE relname LIKE 'onceward%%' AND relkind IN ('r', 'i')"


def timed(what: str, run: Callable[[], object]) -> None:
    start = time.perf_counter()
    told = run()
    print(f"{what:<44} {time.perf_counter() - start:8.2f} s  {told}", flush=True)


def each(what: str, run: Callable[[], object], count: int = 1000) -> None:
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    print(f"{what:<44} {statistics.median(taken) * 1e3:8.2f} ms (median of {count})", flush=True)


def main(url: str, records: int) -> None:
    once = Once(url, name="shop.charge", retention=30 * 86400)
    ledger, store = once.ledger, once.ledger.store
    old = lambda: f"shop.charge:{hashlib.md5(str(random.randrange(10, records)).encode()).hexdigest()}"
    with psycopg.connect(url, autocommit=True) as sql:
        drive(store.load("?"), store)
        ((there,),) = sql.execute("SELECT count(*) FROM (SELECT FROM onceward LIMIT %s) found", [records // 2])
        if there < records // 2:
            timed("fill", lambda: sql.execute(FILL, {"n": records}).rowcount)
            timed("vacuum, analyze", lambda: sql.execute("VACUUM ANALYZE onceward").statusmessage)
        each("first call", lambda: once.run(uuid.uuid4().hex, lambda: {"receipt": 1}))
        each("read of a record", lambda: drive(store.load(old()), store))
        sql.execute("DROP INDEX onceward_open")
        few = lambda: sum(len(page.records) for page in ledger.pages(status="PARKED", limit=20))
        timed("without the index: 20 parked records", few)
        timed("onceward migrate makes the index", lambda: drive(MIGRATE.require(store)(), store)[-1].made)
        for status in ("PARKED", "LAPSED"):
            each(f"a page of 100 {status} records", lambda: next(ledger.pages(status=status, limit=100)), 10)  # noqa: B023
            timed(f"all {status} records", lambda: sum(1 for _ in ledger.records(status=status)))  # noqa: B023
        timed("onceward stats", ledger.estimate)
        timed("SELECT count(*)", lambda: sql.execute("SELECT count(*) FROM onceward").fetchone())
        timed("(100,000 records are made to expire)", lambda: sql.execute(EXPIRE, [old()]).rowcount)
        timed("onceward purge", ledger.purge)
        timed("vacuum after it", lambda: sql.execute("VACUUM onceward").statusmessage)
        for name, size in sql.execute(SIZES):
            print(f"{name:<44} {size:>10}")
    once.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000)
