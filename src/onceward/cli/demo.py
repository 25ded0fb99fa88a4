"""``onceward demo``: kills and pauses workers in the middle of their work, and proves that this does no harm."""

import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer
from typer import Option

from onceward.cli.demo_worker import LEASE, LEFT, connected
from onceward.cli.ledgers import TROUBLE, refuse

_COUNTS: Final = ("delivered", "effect", "replayed", "refused", "busy")  # of each message
_CREATE: Final = f"""
CREATE TABLE onceward_demo_effects (message TEXT NOT NULL, worker INTEGER NOT NULL, attempt INTEGER NOT NULL);
CREATE TABLE onceward_demo_queue (message TEXT NOT NULL, visible REAL NOT NULL DEFAULT 0, {
    ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in _COUNTS)
})
"""
_SUMS: Final = f"SELECT {', '.join(f'sum({name})' for name in _COUNTS)} FROM onceward_demo_queue"
_STRIKES: Final = {"killed": 0.5, "paused": 0.9}  # seconds on average between two workers that are
_PAUSE: Final = 1.7  # seconds that a worker is paused: longer than its lease, so that its successor can finish
_DUPLICATES: Final = 0.3  # the share of messages that are sent twice
_LINE_EVERY: Final = 2.0  # seconds between lines of figures
_PATIENCE: Final = 30.0  # seconds beyond --seconds; then the demo gives up
_ENDING: Final = 10.0  # seconds in which a worker without work ends


class Chaos:
    """Worker processes that are killed, or paused to go on as zombies.

    Attributes:
        strikes: how many were killed and paused.
    """

    def __init__(self, arguments: list[str], workers: int) -> None:
        self.strikes = dict.fromkeys(_STRIKES, 0)
        self._arguments = arguments
        self._workers = [self._started() for _ in range(workers)]
        self._paused: dict[subprocess.Popen[bytes], float] = {}  # until when
        self._next = dict.fromkeys(_STRIKES, time.monotonic() + 1)

    def step(self, *, gentle: bool) -> None:
        """Do what is due; when ``gentle``, kill and pause nobody."""
        now = time.monotonic()
        self._workers = [worker if worker.poll() is None else self._started() for worker in self._workers]
        for worker in [worker for worker, until in self._paused.items() if until <= now]:
            del self._paused[worker]
            worker.send_signal(signal.SIGCONT)
        for what, every in _STRIKES.items():
            free = [worker for worker in self._workers if worker not in self._paused and worker.poll() is None]
            if not gentle and now >= self._next[what] and len(free) > 1:  # one is always left alone
                self._next[what] = now + every * random.uniform(0.5, 1.5)
                self._strike(random.choice(free), what, now)

    def end(self, patience: float) -> None:
        """Wait until all workers have ended, and kill those that have not."""
        until = time.monotonic() + patience
        for worker in self._workers:
            worker.send_signal(signal.SIGCONT)
        for worker in self._workers:
            try:
                worker.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL, start_new_session=True)

    def _strike(self, worker: subprocess.Popen[bytes], what: str, now: float) -> None:
        self.strikes[what] += 1
        if what == "killed":
            worker.kill()
            worker.wait()
        else:
            self._paused[worker] = now + _PAUSE
            worker.send_signal(signal.SIGSTOP)


def demo(
    *,
    messages: Annotated[int, Option(min=1)] = 400,
    seconds: Annotated[float, Option(min=1)] = 15.0,
    workers: Annotated[int, Option(min=2)] = 6,
) -> None:
    """Kill and pause workers in the middle of their work, and prove that each message took effect exactly once.

    Exit status: [bold]0[/bold] the proof holds; [bold]1[/bold] it does not.

    Options:
        messages (N): Messages to send.
        seconds (S): For about how many seconds workers are killed and paused.
        workers (N): Worker processes.
    """
    if not hasattr(signal, "SIGSTOP"):
        refuse("the demo pauses workers by SIGSTOP, which this system does not have. Run it on Linux or macOS", TROUBLE)
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as name, closing(connected(Path(name))) as table:
        table.executescript(_CREATE)
        try:
            proven = _run(Path(name), table, [f"message-{n:04}" for n in range(messages)], seconds, workers)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    raise typer.Exit(0 if proven else 1)


def _run(folder: Path, table: sqlite3.Connection, messages: list[str], seconds: float, workers: int) -> bool:
    twice = random.sample(messages, int(len(messages) * _DUPLICATES))
    sent = [(message,) for message in (*messages, *twice)]
    random.shuffle(sent)
    table.execute("BEGIN")
    table.executemany("INSERT INTO onceward_demo_queue (message) VALUES (?)", sent)
    table.execute("COMMIT")
    typer.echo(
        f"{len(messages)} messages, {len(twice)} of them sent twice, to {workers} workers with a lease of {LEASE:g} s.\n"
        f"In the middle of their work, workers are killed (SIGKILL), or paused for {_PAUSE:g} s (SIGSTOP) and woken as zombies."
    )
    work = min(1.0, 0.6 * seconds * workers / len(sent))
    chaos = Chaos([sys.executable, "-m", "onceward.cli.demo_worker", str(folder), str(work)], workers)
    began = next_line = time.monotonic()

    def counts() -> dict[str, int]:
        return dict(zip(_COUNTS, table.execute(_SUMS).fetchone(), strict=True)) | chaos.strikes

    patience = 0.0
    try:
        while time.monotonic() < began + seconds + _PATIENCE:
            (left,) = table.execute(f"SELECT count(*) FROM {LEFT}").fetchone()
            if not left:
                patience = _ENDING
                break
            chaos.step(gentle=time.monotonic() > began + seconds)
            if time.monotonic() >= next_line:
                figures = "".join(f"{what} {count}, " for what, count in counts().items() if count)
                typer.echo(f"{figures}{left} still in the queue")
                next_line += _LINE_EVERY
            time.sleep(0.02)
    finally:
        chaos.end(patience)
    effects = Counter(message for (message,) in table.execute("SELECT message FROM onceward_demo_effects"))
    return _prove(effects, Counter(messages), counts(), time.monotonic() - began)


def _prove(effects: Counter[str], expected: Counter[str], counts: dict[str, int], seconds: float) -> bool:
    """Print what the effects' own table says."""
    missing, doubled = expected - effects, effects - expected
    replayed, zombies = counts["replayed"], counts["refused"]
    plain = effects.total() + replayed + zombies
    typer.echo(
        f"{counts['delivered']} deliveries, {counts['killed']} kills, {counts['paused']} pauses in "
        f"{seconds:.1f} s; {zombies} zombies were refused, {replayed} duplicates replayed.\n"
        f"{plain} deliveries reached the point of their effect. Without onceward, at least once, that would be "
        f"{plain - len(expected)} effects too many.\n"
        f"The table of effects, which has no unique constraint, holds {effects.total()}: "
        f"{len(missing)} missing, {len(doubled)} doubled."
    )
    proven = not (missing or doubled)
    typer.echo(
        f"Exactly once: all {len(expected)} messages took effect, each one time."
        if proven
        else f"NOT exactly once. Missing: {[*missing][:5]}, doubled: {[*doubled][:5]}"
    )
    return proven
