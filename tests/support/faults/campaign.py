"""Campaigns: consumers, servers and clients are killed, their broker and ledger are restarted, and then the effects are counted (``make campaign``)."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from onceward import Once, OncewardError
from places import SOURCES, SUPPORT, WORKERS
from servers.needs import free_port
from servers.orphans import watched
from stores.ledgers import LEDGERS, RedisLedger

MESSAGES = int(os.environ.get("ONCEWARD_CAMPAIGN_MESSAGES", "300"))
SMALL = "ONCEWARD_CAMPAIGN_MESSAGES" not in os.environ  # as in CI: kills come three times as often
IDLE = 10.0  # seconds without an effect after which the oldest consumer is killed all the same
GONE = 60.0  # seconds after which what is neither in the broker nor parked is lost
RATE = 50  # messages a second that are published, so that there is time for kills
_NOBODY = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}


def own_ledger(usual: str, request, folder: Path):
    """Give a ledger and its server, which can be killed: ``usual``, or what STORE= of ``make campaign`` says."""
    kinds = {**LEDGERS, "redis": RedisLedger}
    return kinds[os.environ.get("ONCEWARD_CAMPAIGN_LEDGER") or usual].own_server(request, folder)


class Crew:
    """Processes that are killed and started again; they end with the run. What they say goes to ``log``."""

    def __init__(self, log: Path, commands: Iterable[Sequence[object]], **environment: str) -> None:
        self.kills = 0
        self._log = log.open("ab")
        plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        paths = {"PYTHONPATH": f"{SOURCES}:{SUPPORT}", "PYTHONWARNINGS": "error"}
        self._environment = plain | _NOBODY | paths | environment
        self._commands = [list(map(str, command)) for command in commands]
        self._processes = [self._started(command) for command in self._commands]
        self.oldest = list(range(len(self._commands)))  # their numbers, the one that began first before others

    def __len__(self) -> int:
        return len(self._commands)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _started(self, command: list[str]) -> subprocess.Popen:
        started = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._environment)
        return watched(started)

    def kill(self, number: int | None = None) -> None:
        """Kill one, whatever it is at, and start another; those that have ended, too."""
        victim = random.choice(self.oldest) if number is None else number
        self.oldest.remove(victim)
        self.oldest.append(victim)
        self._processes[victim].kill()
        self._processes[victim].wait()
        self.kills += 1
        self.revive()

    def revive(self) -> None:
        """Start those again that have ended: they could not start while a server was away."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[number] = self._started(self._commands[number])

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._log.close()


def campaign(
    ledger,
    server,
    folder: Path,
    *,
    command: Sequence[object],
    publish: Callable[[list[int]], None],  # sends {"id": number} for each, and returns when the broker has them
    left: Callable[[], int],  # how many messages the broker still has, those that a consumer holds included
    restart: Callable[[], None],  # kills the broker and starts it again; it loses nothing
    redrive: Callable[[list[int]], None],  # sends poisoned messages again; called until their effects are there
    poison: int = 50,
    messages: int = MESSAGES,
    rate: float = RATE,
    crew: int = 4,
    concurrency: int = 10,
    kill_every: float = 5.0,
    environment: dict[str, str] | None = None,
) -> None:
    """Run a campaign and print what it counted: no message was lost, and none took effect twice."""
    journal, fix = folder / "journal", folder / "fixed"
    ledger.journal = journal
    told = {"ledger": ledger.url, "journal": str(journal), "fix": str(fix), "poison": poison}
    poisoned = {number for number in range(messages) if number % poison == poison // 2}
    once = Once(ledger.url)
    once.ledger.stats()  # makes the tables
    everyone = set(range(messages))
    disasters = [(messages // 4, lambda: (server.stop(), server.start())), (messages // 2, restart)]
    restarts, pause = len(disasters), kill_every / 3 if SMALL else kill_every
    publisher = _Publisher(publish, messages, rate)
    began = killed = redriven = looked = held = time.monotonic()
    limit = 600.0 + messages / 2  # seconds, on a machine that is five times slower; less than faulthandler_timeout
    log, seen, spent = folder / "crew.log", 0, Counter()
    environment = {"ONCEWARD_CAMPAIGN": json.dumps(told), **(environment or {})}
    with Crew(log, [command] * crew, **environment) as consumers:
        publisher.start()
        while True:
            spent = Counter({int(name): times for name, times in ledger.spent().items()})
            missing = everyone - set(spent)
            if not missing and not disasters and not publisher.is_alive() and not _left(left):
                break
            parked = -1 if disasters or publisher.is_alive() else _parked(once)
            if not 0 <= parked < len(missing):
                held = time.monotonic()  # messages are on their way, or all that is missing waits for a person
            elif time.monotonic() - looked > 5.0:
                looked = time.monotonic()
                held = held if _left(left) == 0 else looked
            if time.monotonic() - began > limit or time.monotonic() - held > GONE:
                raise AssertionError(
                    f"{len(missing)} effects are missing, such as {sorted(missing)[:9]}; {_left(left)} messages are left; "
                    f"{publisher.published} are published ({publisher.trouble!r}); {once.ledger.stats()}; "
                    f"{log.read_text(errors='replace')[-4000:]}"
                )
            if disasters and len(spent) >= disasters[0][0]:
                disasters.pop(0)[1]()
                held = time.monotonic()  # a slow machine needs long for it
            if time.monotonic() - killed > (pause if spent.total() > seen else IDLE):
                # The oldest, if nothing goes on: it may hold for ever what it has lost sight of.
                consumers.kill(None if spent.total() > seen else consumers.oldest[0])
                killed, seen = time.monotonic(), spent.total()
            if missing and not fix.exists() and parked >= len(missing) >= len(poisoned):
                fix.touch()  # all that is missing waits for a person
            if missing and fix.exists() and time.monotonic() - redriven > 2.0:
                redrive(sorted(missing))
                redriven = time.monotonic()
            time.sleep(0.25)
    took = time.monotonic() - began
    again = Counter({number: times - 1 for number, times in spent.items() if times > 1})
    in_record = ledger.scheme != RedisLedger.scheme
    doubled = [number for number in sorted(again) if in_record or not ledger.fenced(number)]
    figures = (
        f"{messages:,} messages, published {publisher.published:,} times, {len(poisoned)} poisoned and redriven, "
        f"{consumers.kills} kills, {restarts} restarts, {took:.0f} s, {messages / took:.0f}/s: "
        f"lost 0, doubled {len(doubled)}, repeats {again.total()}"
    )
    print(f"\n{folder.name} on {ledger.scheme}: {figures}")
    assert not doubled, figures
    assert consumers.kills, "nobody was killed"
    assert again.total() <= (0 if in_record else concurrency * (consumers.kills + crew * restarts)), figures
    ended = Counter(record.status for record, _ in once.ledger.records())
    once.close()
    assert ended == {"COMPLETED": messages}, (ended, figures)


class _Publisher(threading.Thread):
    """Publishes a few numbers twice a second, each tenth three times. Copies come later than their first."""

    def __init__(self, publish: Callable[[list[int]], None], messages: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._publish, self._rate = publish, rate
        late = messages * 0.3
        places = [(float(number), number) for number in range(messages)]
        places += [(number + random.random() * late, number) for number in range(0, messages, 10) for _ in range(2)]
        self._numbers = [number for _, number in sorted(places)]
        self.published = 0
        self.trouble: Exception | None = None  # the first

    def run(self) -> None:
        share = max(1, round(self._rate / 2))
        for first in range(0, len(self._numbers), share):
            began = time.monotonic()
            chunk = self._numbers[first : first + share]
            while True:
                try:
                    self._publish(chunk)
                except Exception as error:
                    self.trouble = self.trouble or error
                    time.sleep(0.2)
                else:
                    break
            self.published += len(chunk)
            time.sleep(max(0.0, 0.5 - (time.monotonic() - began)))


def _parked(once: Once) -> int:
    with contextlib.suppress(OncewardError):  # the ledger's server was restarted, and a pooled connection is dead
        return once.ledger.stats()["PARKED"]
    return -1


def _left(left: Callable[[], int]) -> int:
    with contextlib.suppress(Exception):  # the broker is starting
        return left()
    return -1


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
        given = {"ports": ports, "messages": MESSAGES, "threads": THREADS, "lease": LEASE, **told}
        given["receipts"] = str(folder / f"receipts-{number}")
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
