"""How often the server flushes its log for a message, and what a call costs beside many records."""

import asyncio
import hashlib
import os
import random
import time
from collections.abc import Callable

from idemkit.backends.postgres import init_pg

from measure import Cost, interleaved, table, timed
from onceward import Once
from postgres_replay import CASES, Replay, Statement, orders
from servers.postgres import Postgres
from stores_cases import CALLS, TITLES, some
from stores_peers import ONCEWARD, PEER, RAW, Peer, guarded, idemkit, raw

QUIET = 0.05  # flushes for a duplicate that the server made by itself meanwhile
ROUNDS = 5
LARGER = 1.5  # the goal: times the smallest ledger's


# --- flushes --------------------------------------------------------------------------------------------------------


def flushes(server: Postgres, tape: dict[str, list[Statement]]) -> None:
    """Print what the server's own counters say of its log."""
    replay = Replay(tape)
    makers: dict[str, Callable[[], Peer]] = {
        ONCEWARD: lambda: guarded(Once(server.url)),
        PEER: lambda: idemkit(server.url),
        RAW: lambda: raw(server.url, replay),
    }
    rows = []
    for case in CASES:
        seen = [_counted(server, make, case, number) for number, make in enumerate(makers.values())]
        goal = ("", "")
        if case in {"duplicate", "batch again"}:
            goal = ("0", "yes" if seen[0][0] < QUIET else "NO")
        rows.append((TITLES[case], *(flushed for flushed, _ in seen), *(round(length) for _, length in seen), *goal))
    table(
        f"the server's log, for each of {CALLS} messages, or of a batch, by its own counters (pg_stat_wal)",
        ["", *(f"flushes, {name}" for name in makers), *(f"bytes, {name}" for name in makers), "goal", "met"],
        rows,
    )


def _counted(server: Postgres, make: Callable[[], Peer], case: str, number: int) -> tuple[float, float]:
    mine = some(case, 80 + number, 0)
    before = _wal(server)
    peer = make()
    peer.run(case, mine)
    peer.close()
    after = _wal(server)
    return (after[0] - before[0]) / len(mine), (after[1] - before[1]) / len(mine)


def _wal(server: Postgres) -> tuple[int, int]:
    """Return how often the log was flushed, and its length. A session tells its counts when it ends."""
    while server.sql("SELECT 1 FROM pg_stat_activity WHERE datname = 'test'"):
        time.sleep(0.01)
    ((flushed, length),) = server.sql("SELECT wal_sync, pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_wal")
    return flushed, int(length)


# --- records --------------------------------------------------------------------------------------------------------

# Rows whose keys are hashes of their numbers, in no order.
FILL = """
INSERT INTO {table} (key, status, owner, fence, beat, lease_until, attempts, result, created_at, expires_at, updated_at, worker)
SELECT 'stores.handle:' || md5(n::text), 'COMPLETED', md5('o' || n), 1767225600000000 + n, 1, now(), 1, '{{"ok":true}}',
now(), now() + interval '14 days' + n * interval '1 ms', now(), 'host/1' FROM generate_series(1, {count}) n"""
FILL_IDEMKIT = """
INSERT INTO {table} (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until, completed_at,
response_status, response_headers, response_body)
SELECT md5(n::text) || md5('k' || n), 'COMPLETED', 'idemkit-ai-tool-v1', 1, md5('o' || n), now(), now() + interval '1 day', now(),
200, '{{}}', '{{"ok":true}}' FROM generate_series(1, {count}) n"""


def records(server: Postgres, sizes: list[int]) -> None:
    """Print what a call costs beside so many records."""
    peers: dict[str, Peer] = {}
    cases: dict[str, Callable[[int], Cost]] = {}
    for number, size in enumerate(sizes):
        start = time.perf_counter()
        mine, theirs = f"ledger_{size}", f"idemkit_{size}"
        ours = peers[f"onceward, {size:,}"] = guarded(Once(f"{server.url}?table={mine}"))
        ours.run("first call", orders("makes-it", 1))
        asyncio.run(init_pg(server.url, table=theirs))
        peer = peers[f"idemkit, {size:,}"] = idemkit(server.url, theirs)
        for name, fill in ((mine, FILL), (theirs, FILL_IDEMKIT)):
            filled(server, name, fill.format(table=name, count=size))
        ((bytes_,),) = server.sql("SELECT pg_total_relation_size(%s)", mine, database="test")
        print(
            f"  made 2 ledgers of {size:,} records in {time.perf_counter() - start:.0f} s; onceward's has {bytes_ >> 20} MiB"
        )
        cases[f"a first call, onceward, {size:,}"] = _calls(ours, f"size-{number}--")
        cases[f"a duplicate, onceward, {size:,}"] = _duplicates(ours, size)
        cases[f"a first call, idemkit, {size:,}"] = _calls(peer, f"size-{number}--")
    server.sql("CHECKPOINT")
    os.sync()  # what making them has left to be written is not the calls' cost
    costs = interleaved(dict(sorted(cases.items())), ROUNDS)
    for peer in peers.values():
        peer.close()
    rows = []
    for name, cost in costs.items():
        smallest = costs[f"{name.rpartition(', ')[0]}, {sizes[0]:,}"]
        times = cost.wall / smallest.wall
        goal = (
            ("", "") if "idemkit" in name or cost is smallest else (f"<= {LARGER}", "yes" if times <= LARGER else "NO")
        )
        rows.append((name, round(cost.cpu), round(cost.wall), times, *goal))
    table(
        f"beside so many records: µs, {CALLS} calls one after the other, median of {ROUNDS} interleaved rounds",
        ["", "CPU", "wall", "wall / smallest", "goal", "met"],
        rows,
    )


def filled(server: Postgres, table: str, fill: str) -> None:
    """Insert rows before there are indices: an index is made faster than it grows."""
    made = server.sql(
        "SELECT indexdef FROM pg_indexes WHERE tablename = %s AND indexname !~ 'pkey$'", table, database="test"
    )
    names = server.sql(
        "SELECT indexname FROM pg_indexes WHERE tablename = %s AND indexname !~ 'pkey$'", table, database="test"
    )
    ((column,),) = server.sql(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
        "WHERE i.indrelid = %s::regclass AND i.indisprimary",
        table,
        database="test",
    )
    statements = [
        f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey",
        *(f"DROP INDEX {name}" for (name,) in names),
        fill,
    ]
    statements += [
        f"ALTER TABLE {table} ADD PRIMARY KEY ({column})",
        *(text for (text,) in made),
        f"VACUUM ANALYZE {table}",
    ]
    for statement in statements:
        server.sql(statement, database="test")


def _calls(peer: Peer, prefix: str) -> Callable[[int], Cost]:
    def run(turn: int) -> Cost:
        mine = [{"id": hashlib.md5(f"{prefix}{turn}-{n}".encode()).hexdigest()} for n in range(CALLS)]
        return timed(lambda: peer.run("first call", mine), CALLS)

    return run


def _duplicates(peer: Peer, size: int) -> Callable[[int], Cost]:
    def run(turn: int) -> Cost:
        numbers = [random.randrange(size) + 1 for _ in range(CALLS)]
        mine = [{"id": hashlib.md5(str(number).encode()).hexdigest()} for number in numbers]
        return timed(lambda: peer.run("duplicate", mine), CALLS)

    return run
