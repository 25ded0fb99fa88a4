"""What steps, messages, the relay and the finding of due messages cost; and three steps and a message beside DBOS Transact.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/chains.py [PART ...] [--records 10000000]
Parts: steps, peers, relay, due; all of them take about three minutes with 1,000,000 records.

PostgreSQL 15 with its own settings and fsync on; it is started and stopped here, and DBOS has a database of its own on it. Cases
take turns in one run. Effects take no time: what is measured is what records them.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
for name in [name for name in os.environ if name.startswith(("AWS_", "PG"))]:
    del os.environ[name]

from chains_peers import CASES, PEERS, ChainPeer, charge
from delay_proxy import DelayProxy
from measure import Cost, interleaved, table, timed
from onceward import Claim, Once
from onceward.core.drivers import drive
from onceward.core.selections import DueWithin
from onceward.observe.events import StoreRequest
from onceward.outbox import register
from onceward.outbox.sender import SENDER, drain
from queues.boxes import RecordedTarget
from servers.postgres import Postgres
from stores_disk import FILL, filled

CALLS, ROUNDS = 50, 5
COUNTED = 40  # calls whose requests, flushes and statements are counted
PARTS = ("steps", "peers", "relay", "due")
NUMBERS = count()


# --- steps ----------------------------------------------------------------------------------------------------------


def steps(server: Postgres, folder: Path) -> None:
    """Print what a step adds to a handler, on each ledger."""
    urls = {"memory": "memory:", "SQLite": f"sqlite:///{folder}/chains.db", "PostgreSQL": server.url}
    cases: dict[str, Callable[[int], Cost]] = {}
    requests: dict[str, float] = {}
    for ledger, url in urls.items():
        seen: list[object] = []
        counted = Once(url, observe=[lambda event, seen=seen: isinstance(event, StoreRequest) and seen.append(event)])
        once = Once(url)
        for made in (0, 1, 3, 10):
            name = f"{ledger}, {made} steps"
            call = _stepping(counted, f"counted-{made}", made)
            call("warm")
            seen.clear()
            call("counted")
            requests[name] = len(seen)
            cases[name] = _case(_stepping(once, f"timed-{made}", made))
    costs = interleaved(cases, ROUNDS)
    rows = []
    for name, cost in costs.items():
        bare, made = costs[f"{name.partition(',')[0]}, 0 steps"], int(name.split()[1])
        each = ((cost.cpu - bare.cpu) / made, (cost.wall - bare.wall) / made) if made else ("", "")
        rows.append((name, requests[name], round(cost.cpu), round(cost.wall), *each))
    table(
        f"a handler with steps: µs of a call, median of {ROUNDS} interleaved rounds of {CALLS}; and of each step over no step",
        ["", "requests", "CPU", "wall", "CPU of a step", "wall of a step"],
        rows,
    )


def _stepping(once: Once, name: str, made: int) -> Callable[[str], object]:
    @once(key="order", name=name)
    def handle(order: str, claim: Claim) -> str:
        for number in range(made):
            claim.step(("charge", number), charge, order)
        return order

    return handle


def _case(call: Callable[[str], object], end: Callable[[], object] = lambda: None) -> Callable[[int], Cost]:
    def run(_turn: int) -> Cost:
        keys = [f"k{next(NUMBERS)}" for _ in range(CALLS)]
        return timed(lambda: ([call(key) for key in keys], end()), CALLS)

    return run


# --- beside DBOS Transact -------------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """What one call made the server do, by its own counters and a proxy before it."""

    trips: float
    commits: float
    flushes: float
    wal: float
    statements: float


def peers(server: Postgres, counting: DelayProxy) -> None:
    """Print the handlers of both, and what each of them did."""
    server.sql("CREATE DATABASE dbos")
    made: dict[str, ChainPeer] = {name: make(_url(server.url, name)) for name, make in PEERS.items()}
    cases = {f"{case}, {name}": _case(peer.calls[case], peer.drain) for case in CASES for name, peer in made.items()}
    costs = interleaved(cases, ROUNDS)
    for peer in made.values():
        peer.close()
    rows, did = [], []
    for name, cost in costs.items():
        case, _, who = name.rpartition(", ")
        other = costs[f"{case}, DBOS Transact"]
        rows.append((name, round(cost.cpu), round(cost.wall), cost.cpu / other.cpu, cost.wall / other.wall))
        did.append((name, *_counted(server, counting, who, case)))
    table(
        f"three steps and a message: µs of a call, median of {ROUNDS} interleaved rounds of {CALLS}, one call after another; "
        "with the sending, which is behind the answer",
        ["", "CPU", "wall", "CPU / DBOS", "wall / DBOS"],
        rows,
    )
    table(
        f"what a call did, by the server's counters and a proxy: mean of {COUNTED} calls",
        ["", "round trips", "commits", "flushes", "bytes of log", "statements"],
        did,
    )


def _url(url: str, name: str) -> str:
    return url.replace("/test", "/dbos") if name.startswith("DBOS") else url


def _counted(server: Postgres, proxy: DelayProxy, name: str, case: str) -> Counted:
    """Let processes make a few calls and many calls, and return the difference for each."""
    few, many = (_did(server, proxy, name, case, calls) for calls in (5, 5 + COUNTED))
    return Counted(*((much - little) / COUNTED for little, much in zip(few, many, strict=True)))


def _did(server: Postgres, proxy: DelayProxy, name: str, case: str, calls: int) -> Counted:
    log, database = server._scratch / "log", "dbos" if name.startswith("DBOS") else "test"
    server.sql("ALTER SYSTEM SET log_statement = 'all'")
    server.sql("SELECT pg_reload_conf()")
    before, lines = _counters(server, database), len(log.read_text().splitlines())
    proxy.tally()
    command = [sys.executable, str(Path(__file__).with_name("chains_peers.py")), name, _url(proxy.postgres, name), case]
    done = subprocess.run([*command, str(calls)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    trips, after = proxy.tally().requests, _counters(server, database)
    written = log.read_text().splitlines()[lines:]
    statements = sum("LOG:  statement: " in line or "LOG:  execute " in line for line in written)
    server.sql("ALTER SYSTEM RESET log_statement")
    server.sql("SELECT pg_reload_conf()")
    return Counted(trips, *(b - a for a, b in zip(before, after, strict=True)), statements)


def _counters(server: Postgres, database: str) -> tuple[float, ...]:
    """Return commits, flushes and bytes of the log. A session tells its counts when it ends."""
    while server.sql("SELECT 1 FROM pg_stat_activity WHERE datname = %s", database):
        time.sleep(0.05)
    ((commits,),) = server.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", database)
    ((flushed, length),) = server.sql("SELECT wal_sync, pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_wal")
    return commits, flushed, float(length)


# --- the relay ------------------------------------------------------------------------------------------------------


def relay(server: Postgres, records: int) -> None:
    """Print how fast one relay sends what is due, to a target that takes no time."""
    from onceward.outbox.relay import Relay

    rows = []
    for batch in (1, 10):
        target = RecordedTarget(batch)
        register(f"relay{batch}", lambda _, target=target: target)
        once = Once(f"{server.url}?table=relay{batch}")

        @once(key="order", name="sends")
        def handle(order: int, claim: Claim, to: str = f"relay{batch}:orders") -> None:
            claim.send(to, {"order": order})

        hand_over, SENDER.hand_over = SENDER.hand_over, lambda _: False  # as if this process crashed after each call
        for order in range(records):
            handle(order)
        SENDER.hand_over = hand_over
        server.sql(f"UPDATE relay{batch} SET due_at = now() - interval '1 minute'", database="test")
        server.sql(f"VACUUM ANALYZE relay{batch}", database="test")
        wall, cpu = time.perf_counter(), time.process_time()
        Relay(once).run(until_empty=True)
        left = drain(60)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert (len(target.sent), left) == (records, 0), (len(target.sent), left)
        rows.append(
            (f"{batch} at a time", round(records / wall), round(cpu / records * 1e6), round(wall / records * 1e6))
        )
        once.close()
    table(
        f"one relay, {records:,} records with a message each, a target that takes no time",
        ["messages in a send", "messages a second", "CPU, µs of each", "wall, µs of each"],
        rows,
    )


# --- what is due ----------------------------------------------------------------------------------------------------

DUE_ROWS = """
UPDATE {table} SET unsent = '[]', due_at = now() + n * interval '1 ms' - interval '1 second' * {due}, expires_at = NULL
FROM generate_series(1, {due}) n WHERE key = 'stores.handle:' || md5(n::text)"""
LAPSED_ROWS = """
UPDATE {table} SET status = 'IN_PROGRESS' WHERE key IN (SELECT 'stores.handle:' || md5(n::text)
FROM generate_series(5001, 5000 + {due}) n)"""


def due(server: Postgres, sizes: list[int]) -> None:
    """Print how long it takes to find 100 due records, and 100 lapsed ones, beside so many completed ones."""
    found: dict[str, Callable[[int], Cost]] = {}
    for size in sizes:
        name = f"due_{size}"
        once = Once(f"{server.url}?table={name}")
        once.run("makes-it", str)
        filled(server, name, FILL.format(table=name, count=size))
        for text in (DUE_ROWS, LAPSED_ROWS):
            server.sql(text.format(table=name, due=100), database="test")
        server.sql(f"VACUUM ANALYZE {name}", database="test")
        assert len(drive(once.store.select(DueWithin(), None, 100), once.store).records) == 100
        assert len(list(once.ledger.records(status="LAPSED"))) == 100
        found[f"100 due records of {size:,}"] = lambda _, store=once.store: timed(
            lambda: drive(store.select(DueWithin(), None, 100), store), 1
        )
        found[f"100 lapsed records of {size:,}"] = lambda _, ledger=once.ledger: timed(
            lambda: list(ledger.records(status="LAPSED")), 1
        )
    costs = interleaved(dict(sorted(found.items())), 15)
    table(
        "finding by an index: ms, median of 15 interleaved rounds",
        ["", "CPU", "wall"],
        [(name, cost.cpu / 1000, cost.wall / 1000) for name, cost in costs.items()],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--records", type=int, default=1_000_000, help="of the largest ledger; default 1,000,000")
    parser.add_argument("--relayed", type=int, default=2_000, help="records of the relay; default 2,000")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also a killed benchmark stops its server
    server = Postgres(autovacuum="off", checkpoint_timeout="1h")  # they flush, too
    try:
        ((told,),) = server.sql("SHOW server_version")
        print(
            f"PostgreSQL {told}, Python {sys.version.split()[0]}, dbos {version('dbos')}, psycopg {version('psycopg')}"
        )
        if "peers" in asked.parts:
            counting = DelayProxy(server.port, 0.0, "turns")
            try:
                peers(server, counting)
            finally:
                counting.stop()
        if "steps" in asked.parts:
            with tempfile.TemporaryDirectory() as folder:
                steps(server, Path(folder))
        if "relay" in asked.parts:
            relay(server, asked.relayed)
        if "due" in asked.parts:
            due(server, [size for size in (10_000, 1_000_000) if size < asked.records] + [asked.records])
    finally:
        server.stop()
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


if __name__ == "__main__":
    main()
