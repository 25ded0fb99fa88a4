"""Processes that serve HTTP, and their clients, are killed while the clients have work; the ledger's server, too.

Of test_campaigns.py. CI runs 300 messages; ``make campaign BROKER=proxy`` runs 5,000.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from faults.campaign import MESSAGES, SMALL, Crew
from places import WORKERS
from servers.needs import free_port

CALLERS, THREADS = 2, 8  # each caller sends every message
LEASE = 8.0  # seconds; if a ledger is away for longer, the answers of that time are recorded without their results
KILLS = 12 if SMALL else 60


class Fire(NamedTuple):
    messages: int
    kills: int
    crashes: int
    seconds: float
    receipts: list[dict[int, object]]  # of each caller, by message

    @property
    def excuse(self) -> int:
        """How many effects may have been repeated for what was killed: those that were under way."""
        return CALLERS * THREADS * (self.kills + self.crashes)


def under_fire(ledger, server, folder: Path, *, serve: Callable[[int], list[object]], **told) -> Fire:
    """Run servers and callers until each caller is done with each message; return what was done."""
    ports = [free_port() for _ in range(3)]
    commands = []
    for number in range(CALLERS):
        given = {
            "ports": ports,
            "messages": MESSAGES,
            "threads": THREADS,
            "lease": LEASE,
            "receipts": str(folder / f"receipts-{number}"),
            **told,
        }
        commands.append([sys.executable, WORKERS / "campaign_caller.py", json.dumps(given)])
    crashes = [MESSAGES * CALLERS * part // 8 for part in (2, 5)]
    kills = [MESSAGES * CALLERS * (part + 1) // (KILLS + 2) for part in range(KILLS)]
    began, limit, log = time.monotonic(), 300 + MESSAGES, folder / "fire.log"
    killed = crashed = 0
    with Crew(log, map(serve, ports)) as servers, Crew(log, commands) as callers:
        while (done := sum(map(len, read_receipts(folder)))) < MESSAGES * CALLERS or kills or crashes:
            if time.monotonic() - began > limit:
                said = log.read_text(errors="replace")[-4000:]
                raise AssertionError(f"{done} of {MESSAGES * CALLERS} receipts after {limit} s: {said}")
            if crashes and done >= crashes[0]:
                crashes.pop(0)
                server.stop()
                server.start()
                crashed += 1
            if kills and done >= kills[0]:
                kills.pop(0)
                random.choice([servers, callers]).kill()
                killed += 1
            servers.revive()  # if all were starting while the ledger was away, nobody would make the progress that kills wait for
            time.sleep(0.1)
        took = time.monotonic() - began
    assert killed == KILLS
    assert crashed == 2
    return Fire(MESSAGES, killed, crashed, took, read_receipts(folder))


def read_receipts(folder: Path) -> list[dict[int, object]]:
    """Return the receipts of each caller. A line whose writer was killed in the middle does not count."""
    found = []
    for number in range(CALLERS):
        file = folder / f"receipts-{number}"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        assert not (wrong := [line for line in lines if line.startswith("mistake")]), wrong[0]
        parts = [line.partition(" ") for line in lines if line]
        found.append({int(name): json.loads(text) for name, _, text in parts if text.endswith("}")})
    return found
