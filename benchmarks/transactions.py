"""What `once.transaction` costs in PostgreSQL and MariaDB, for each driver, over the effect's own transaction of one INSERT.

Run: python benchmarks/transactions.py [CALLS [DRIVER ...]]
Goals: no flush of the log more, at most 2 statements more, and on PostgreSQL at most 1.9 times the wall on loopback. MariaDB itself
takes 0.3 ms for a claim and 0.2 ms for a completion, so there it is about four times.

It starts PostgreSQL 15 with fsync on, and MariaDB 10.11 with a commit on the disk before it is answered. Bare and once take turns on
one connection each. `benchmarks/stores.py` and `stores_mysql.py` measure the ledger's own verbs; this file only effects that commit
with their record.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from measure import Cost, table
from onceward import Once
from servers.mysql import Mariadb
from servers.postgres import Postgres
from transactions_cases import Act, Case, Cases, Drivers

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
ROUNDS = 15


class OnPostgres:
    """PostgreSQL, and what it counts."""

    name = "PostgreSQL"

    def __init__(self) -> None:
        self.server = Postgres(autovacuum="off", checkpoint_timeout="1h")  # they flush, too
        self.url = self.server.url
        self.server.sql("CREATE TABLE payments (reference text, amount bigint)", database="test")

    def cases(self, once: Once) -> Cases:
        """Return its drivers."""
        return Drivers(once, self.url).of_postgres()

    def settle(self) -> None:
        """Wait until all sessions, which are idle, have reported their flushes."""
        time.sleep(11)

    def flushes(self, act: Act) -> float:
        """Return how often the log is flushed for one call."""

        def seen() -> int:
            time.sleep(1.2)  # a session reports what it did once a second
            act()  # which lets it report
            time.sleep(0.1)
            ((number,),) = self.server.sql("SELECT wal_sync FROM pg_stat_wal")
            return int(number)

        before = seen()
        for _ in range(CALLS):
            act()
        return (seen() - before - 1) / CALLS

    def statements(self, act: Act) -> int:
        """Return how many statements one call sends, by the server's log."""
        path = self.server._scratch / "log"
        self.server.sql("ALTER SYSTEM SET log_statement = 'all'")
        self.server.sql("SELECT pg_reload_conf()")
        time.sleep(0.5)
        act()  # the server reads its settings before a statement
        before = _logged(path)
        act()
        after = _logged(path)
        self.server.sql("ALTER SYSTEM RESET log_statement")
        self.server.sql("SELECT pg_reload_conf()")
        return after - before


def _logged(path: Path) -> int:
    time.sleep(0.2)
    return sum("LOG:  statement: " in line or "LOG:  execute " in line for line in path.read_text().splitlines())


class OnMariadb:
    """MariaDB, and what it counts."""

    name = "MariaDB"

    def __init__(self) -> None:
        self.server = Mariadb(innodb_flush_log_at_trx_commit=1, innodb_doublewrite="ON")
        self.url = self.server.url
        self.server.sql("CREATE TABLE payments (reference varchar(50), amount bigint)")

    def cases(self, once: Once) -> Cases:
        """Return its drivers."""
        return Drivers(once, self.url).of_mariadb()

    def settle(self) -> None:
        """Wait for nothing: it counts at once."""

    def flushes(self, act: Act) -> float:
        """Return how often files are flushed for one call; some flushes are of pages, in the background."""
        before = self._counted("Innodb_data_fsyncs")
        for _ in range(CALLS):
            act()
        return (self._counted("Innodb_data_fsyncs") - before) / CALLS

    def statements(self, act: Act) -> int:
        """Return how many requests one call sends."""
        first, second = self._counted("Questions"), self._counted("Questions")
        act()
        return self._counted("Questions") - second - (second - first)  # to ask costs some, too

    def _counted(self, name: str) -> int:
        ((_, value),) = self.server.sql(f"SHOW GLOBAL STATUS LIKE '{name}'")
        return int(value)


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


def _told(costs: list[float]) -> tuple[int, int, float]:
    return round(costs[0]), round(costs[1]), costs[1] / costs[0]


@contextmanager
def running(kind: type[OnPostgres | OnMariadb]) -> Iterator[OnPostgres | OnMariadb]:
    """Give a server with an empty table of payments."""
    made = kind()
    try:
        yield made
    finally:
        made.server.stop()


def measure(place: OnPostgres | OnMariadb, wanted: list[str]) -> None:
    """Print the table of one server."""
    once = Once(place.url)
    cases = {name: make() for name, make in place.cases(once).items() if not wanted or name in wanted}
    seen: dict[str, tuple[list[Cost], list[Cost]]] = {name: ([], []) for name in cases}
    for turn in range(ROUNDS + 1):
        for name, case in cases.items():
            for costs, more in zip(seen[name], timed(case), strict=True):
                costs.extend(more if turn else [])  # the first warms up
    place.settle()
    rows = []
    for name, case in cases.items():
        wall = [statistics.median(cost.wall for cost in costs) for costs in seen[name]]
        quiet = [statistics.quantiles((cost.wall for cost in costs), n=10)[0] for costs in seen[name]]
        cpu = [statistics.median(cost.cpu for cost in costs) for costs in seen[name]]
        sent = [place.statements(act) for act in (case.bare, case.once)]
        synced = [place.flushes(act) for act in (case.bare, case.once)]
        rows.append((name, *_told(wall), *_told(quiet), *map(round, cpu), *sent, *synced))
    if rows:
        table(
            f"one transaction on {place.name}, µs: median of {ROUNDS * CALLS} calls in turns; a tenth of them took p10 or less, as on a "
            "quiet machine",
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


def main() -> None:
    """Print the tables."""
    for kind in (OnPostgres, OnMariadb):
        with running(kind) as place:
            measure(place, sys.argv[2:])


if __name__ == "__main__":
    main()
