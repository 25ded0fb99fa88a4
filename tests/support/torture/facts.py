"""What the journal and the ledger say, put in order: calls, runs of handlers, strikes, deaths, stops and records."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torture.plan import Plan


@dataclass
class Told:
    """What a caller was told about a key, in its own process."""

    at: float
    key: str
    value: object = None
    error: str | None = None
    text: str = ""
    notes: tuple[str, ...] = ()
    retry_after: float | None = None

    @property
    def all(self) -> str:
        """Everything that was said, notes and causes included."""
        return " | ".join((f"{self.error}: {self.text}", *self.notes))


@dataclass
class Call:
    name: str
    pid: int
    began: float
    keys: list[str]
    told: dict[str, Told] = field(default_factory=dict)
    ended: float | None = None
    strikes: list[dict] = field(default_factory=list)
    caught: int = 0  # exceptions of another thread that a frame of Python's caught

    @property
    def interrupts(self) -> list[dict]:
        return [one for one in self.strikes if one["kind"] in {"soft", "hard", "sigint", "cancel"}]


@dataclass
class Run:
    name: str
    key: str
    call: Call
    entered: float
    fence: int | None
    effect: float | None = None
    left: float | None = None


class Record(NamedTuple):
    key: str
    status: str
    fence: int
    result: object
    stored: bool  # whether there is a result, which may be None


class Facts:
    def __init__(self, plan: Plan, folder: Path, records: list[Record], rows: list[tuple[str, str]]) -> None:
        self.plan = plan
        self.records = {record.key: record for record in records}
        self.rows: dict[str, list[str]] = defaultdict(list)  # the runs whose effects were committed with their record
        for key, run in rows:
            self.rows[key].append(run)
        self.calls: dict[str, Call] = {}
        self.runs: dict[str, Run] = {}
        self.deaths: dict[int, float] = {}
        self.stops: list[tuple[int, float, float]] = []  # (pid, from, to)
        self.made: list[tuple[Run, str]] = []  # steps whose effects were made
        self.got: list[tuple[Run, str, str]] = []  # steps that handlers were told the results of
        self.events: dict[str, list[dict]] = defaultdict(list)
        self.broken_loops: set[int] = set()  # actors whose event loop itself dropped what another thread raised
        self._stopped: dict[int, float] = {}
        for event in events(folder / "journal"):
            self.events[event["what"]].append(event)
            getattr(self, f"_{event['what'].replace('-', '_')}", lambda _: None)(event)
        self.wire = [event["t"] for event in self.events["wire"]]

    def runs_of(self, key: str) -> list[Run]:
        return sorted((run for run in self.runs.values() if run.key == key), key=lambda run: run.entered)

    def calls_of(self, key: str) -> list[Call]:
        return [call for call in self.calls.values() if key in call.keys]

    def stopped(self, pid: int, begin: float, end: float) -> float:
        """Return the seconds that a process was stopped in a time."""
        return sum(max(0.0, min(end, to) - max(begin, at)) for who, at, to in self.stops if who == pid)

    def _call(self, event: dict) -> None:
        self.calls[event["call"]] = Call(event["call"], event["pid"], event["t"], event["keys"])

    def _told(self, event: dict) -> None:
        call = self.calls[event["call"]]
        told = Told(event["t"], event["key"], event.get("value"))
        if "error" in event:
            told.error, told.text, told.retry_after = event["error"], event["text"], event["retry_after"]
            told.notes = tuple(event["notes"])
        call.told[event["key"]] = told

    def _told_all(self, event: dict) -> None:
        self.calls[event["call"]].ended = event["t"]

    def _enter(self, event: dict) -> None:
        call = self.calls[event["call"]]
        self.runs[event["run"]] = Run(event["run"], event["key"], call, event["t"], event["fence"])

    def _effect(self, event: dict) -> None:
        self.runs[event["run"]].effect = event["t"]

    def _leave(self, event: dict) -> None:
        self.runs[event["run"]].left = event["t"]

    def _made_step(self, event: dict) -> None:
        self.made.append((self.runs[event["run"]], event["step"]))

    def _got_step(self, event: dict) -> None:
        self.got.append((self.runs[event["run"]], event["step"], event["value"]))

    def _strike(self, event: dict) -> None:
        if event["call"] in self.calls:
            self.calls[event["call"]].strikes.append(event)

    def _caught(self, event: dict) -> None:
        if event["call"] in self.calls and "asyncio/selector_events.py" not in event["where"]:
            self.calls[event["call"]].caught += 1  # a transport of asyncio keeps what comes as it writes
        if "asyncio/events.py" in event["where"]:
            self.broken_loops.add(event["pid"])

    def _killed(self, event: dict) -> None:
        self.deaths[event["actor"]] = event["t"]

    _hung = _broke = _killed

    def _was_stopped(self, event: dict) -> None:
        self._stopped[event["actor"]] = event["t"]

    def _was_continued(self, event: dict) -> None:
        at = self._stopped.pop(event["actor"], None)
        if at is not None:
            self.stops.append((event["actor"], at, event["t"]))


def now() -> float:
    """Return seconds on the clock that all processes of the machine share and nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Journal:
    """Appends events to a file; safe in signal handlers and trace functions."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, what: str, **more: object) -> None:
        event = {"what": what, "pid": os.getpid(), "t": now(), **more}
        os.write(self._file, json.dumps(event, default=repr).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def events(path: Path) -> Iterator[dict]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)
