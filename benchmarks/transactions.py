"""What `once.transaction` costs in PostgreSQL, for each driver, over the effect's own transaction of one INSERT.

Run: python benchmarks/transactions.py [CALLS]
Goals: no flush of the log more, at most 2 statements more, and at most 1.9 times the wall on loopback.

It starts PostgreSQL 15 with fsync on. Bare and once take turns on one connection each. `benchmarks/stores.py` measures the
ledger's own verbs; this file only effects that commit with their record.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from measure import Cost, table
from onceward import Once
from postgres_hands import django_connection
from postgres_servers import Postgres

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
ROUNDS = 15
INSERT = "INSERT INTO payments VALUES ('order-42', 1250)"
NUMBERS = count()
Act = Callable[[], None]


class Case:
    """One driver: its bare transaction, the same with a record, and how to run both."""

    def __init__(self, bare: Act, once: Act, close: Act) -> None:
        self.bare, self.once, self.close = bare, once, close


def blocking(once: Once, url: str) -> dict[str, Callable[[], Case]]:
    """Return what makes the cases of connections that block."""

    def of_psycopg() -> Case:
        connection = psycopg.connect(url, autocommit=True)

        def bare() -> None:
            with connection.transaction():
                connection.execute(INSERT)

        def both() -> None:
            with once.transaction(f"k{next(NUMBERS)}", connection):
                connection.execute(INSERT)

        return Case(bare, both, connection.close)

    def of_sqlalchemy(make: Callable[[sqlalchemy.Engine], sqlalchemy.Connection | Session], driver: str) -> Case:
        engine = sqlalchemy.create_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        connection, insert = make(engine), sqlalchemy.text(INSERT)

        def bare() -> None:
            with connection.begin():
                connection.execute(insert)

        def both() -> None:
            with once.transaction(f"k{next(NUMBERS)}", connection):
                connection.execute(insert)

        def close() -> None:
            connection.close()
            engine.dispose()

        return Case(bare, both, close)

    def of_django() -> Case:
        connection = django_connection(f"bench{next(NUMBERS)}", url)

        def act() -> None:
            with connection.cursor() as cursor:
                cursor.execute(INSERT)

        def bare() -> None:
            with transaction.atomic(using=connection.alias):
                act()

        def both() -> None:
            with once.transaction(f"k{next(NUMBERS)}", connection):
                act()

        return Case(bare, both, connection.close)

    def of_psycopg2() -> Case:
        connection = psycopg2.connect(url)

        def act() -> None:
            with connection.cursor() as cursor:
                cursor.execute(INSERT)

        def bare() -> None:
            with connection:
                act()

        def both() -> None:
            with once.transaction(f"k{next(NUMBERS)}", connection):
                act()

        return Case(bare, both, connection.close)

    return {
        "psycopg": of_psycopg,
        "psycopg2": of_psycopg2,
        "SQLAlchemy Connection": lambda: of_sqlalchemy(lambda engine: engine.connect(), "psycopg"),
        "SQLAlchemy Session": lambda: of_sqlalchemy(Session, "psycopg"),
        "Django": of_django,
    }


def awaited(once: Once, url: str) -> dict[str, Callable[[], Case]]:
    """Return what makes the cases of connections of coroutines."""
    runner = asyncio.Runner()

    def case(bare: Callable[[], Awaitable[None]], both: Callable[[], Awaitable[None]], close: Act) -> Case:
        run = runner.get_loop().run_until_complete
        return Case(lambda: run(bare()), lambda: run(both()), close)

    def of_psycopg() -> Case:
        connection = runner.run(psycopg.AsyncConnection.connect(url, autocommit=True))

        async def bare() -> None:
            async with connection.transaction():
                await connection.execute(INSERT)

        async def both() -> None:
            async with once.transaction(f"k{next(NUMBERS)}", connection):
                await connection.execute(INSERT)

        return case(bare, both, lambda: runner.run(connection.close()))

    def of_asyncpg() -> Case:
        connection = runner.run(_connected(url))

        async def bare() -> None:
            async with connection.transaction():
                await connection.execute(INSERT)

        async def both() -> None:
            async with once.transaction(f"k{next(NUMBERS)}", connection):
                await connection.execute(INSERT)

        return case(bare, both, lambda: runner.run(connection.close()))

    def of_sqlalchemy(driver: str) -> Case:
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        session, insert = AsyncSession(engine), sqlalchemy.text(INSERT)

        async def bare() -> None:
            async with session.begin():
                await session.execute(insert)

        async def both() -> None:
            async with once.transaction(f"k{next(NUMBERS)}", session):
                await session.execute(insert)

        async def close() -> None:
            await session.close()
            await engine.dispose()

        return case(bare, both, lambda: runner.run(close()))

    return {
        "psycopg, async": of_psycopg,
        "asyncpg": of_asyncpg,
        "AsyncSession, psycopg": lambda: of_sqlalchemy("psycopg"),
        "AsyncSession, asyncpg": lambda: of_sqlalchemy("asyncpg"),
    }


async def _connected(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url)


# --- what is counted ----------------------------------------------------------------------------------------------


def flushes(server: Postgres, act: Act) -> float:
    """Return how often the log is flushed for one call."""
    syncs = "SELECT wal_sync FROM pg_stat_wal"

    def seen() -> int:
        time.sleep(1.2)  # a session reports what it did once a second
        act()  # which lets it report
        time.sleep(0.1)
        ((number,),) = server.sql(syncs)
        return int(number)

    before = seen()
    for _ in range(CALLS):
        act()
    return (seen() - before - 1) / CALLS


def statements(server: Postgres, act: Act) -> int:
    """Return how many statements one call sends, by the server's log."""
    path = server._scratch / "log"
    server.sql("ALTER SYSTEM SET log_statement = 'all'")
    server.sql("SELECT pg_reload_conf()")
    time.sleep(0.5)
    act()  # the server reads its settings before a statement
    before = _logged(path)
    act()
    after = _logged(path)
    server.sql("ALTER SYSTEM RESET log_statement")
    server.sql("SELECT pg_reload_conf()")
    return after - before


def _logged(path: Path) -> int:
    time.sleep(0.2)
    return sum("LOG:  statement: " in line or "LOG:  execute " in line for line in path.read_text().splitlines())


def timed(case: Case) -> tuple[list[Cost], list[Cost]]:
    """Time calls of both kinds in turns."""
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(CALLS):
        for act, into in zip((case.bare, case.once), costs, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            act()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            into.append(Cost(cpu * 1e6, wall * 1e6))
    return costs


@contextmanager
def running() -> Iterator[Postgres]:
    """Give a server with an empty table of payments."""
    server = Postgres(autovacuum="off", checkpoint_timeout="1h")  # they flush, too
    try:
        server.sql("CREATE TABLE payments (reference text, amount bigint)", database="test")
        yield server
    finally:
        server.stop()


def _told(costs: list[float]) -> tuple[int, int, float]:
    return round(costs[0]), round(costs[1]), costs[1] / costs[0]


def main() -> None:
    wanted = sys.argv[2:]
    with running() as server:
        once = Once(server.url)
        made = {**blocking(once, server.url), **awaited(once, server.url)}
        cases = {name: make() for name, make in made.items() if not wanted or name in wanted}
        seen: dict[str, tuple[list[Cost], list[Cost]]] = {name: ([], []) for name in cases}
        for turn in range(ROUNDS + 1):
            for name, case in cases.items():
                for costs, more in zip(seen[name], timed(case), strict=True):
                    costs.extend(more if turn else [])  # the first warms up
        time.sleep(11)  # until all sessions, which are idle, have reported their flushes
        rows = []
        for name, case in cases.items():
            wall = [statistics.median(cost.wall for cost in costs) for costs in seen[name]]
            quiet = [statistics.quantiles((cost.wall for cost in costs), n=10)[0] for costs in seen[name]]
            cpu = [statistics.median(cost.cpu for cost in costs) for costs in seen[name]]
            sent = [statements(server, act) for act in (case.bare, case.once)]
            synced = [flushes(server, act) for act in (case.bare, case.once)]
            rows.append((name, *_told(wall), *_told(quiet), *map(round, cpu), *sent, *synced))
        table(
            f"one transaction, µs: median of {ROUNDS * CALLS} calls in turns; a tenth of them took p10 or less, as on a quiet machine",
            [
                "",
                "bare",
                "once",
                "ratio",
                "p10",
                "once",
                "ratio",
                "CPU",
                "once",
                "statements",
                "once",
                "flushes",
                "once",
            ],
            rows,
        )
        for case in cases.values():
            case.close()
        once.close()


if __name__ == "__main__":
    main()
