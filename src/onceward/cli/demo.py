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
from typing import Annotated

import typer
from typer import Option

from onceward.cli.demo_worker import COUNT, CREATE, EFFECTS, LEASE, LEDGER, PAUSE, DemoQueue, connected
from onceward.cli.ledgers import TROUBLE, refuse

EVERY = {"killed": 0.5, "paused": 0.9}  # seconds on average between two workers that are


class Chaos:
    """Worker processes, and how many were killed, or paused to go on as zombies."""

    def __init__(self, folder: Path, queue: DemoQueue, workers: int, work: float) -> None:
        self.counts = dict.fromkeys(EVERY, 0)
        self._queue = queue
        self._arguments = [sys.executable, "-m", "onceward.cli.demo_worker", str(folder), str(work)]
        self._workers = [self._start() for _ in range(workers)]
        self._paused: dict[int, float] = {}  # process id → when it goes on
        self._next = dict.fromkeys(EVERY, time.monotonic() + 1)

    def step(self, *, gentle: bool) -> None:
        """Do what is due; when ``gentle``, only replace workers that ended."""
        now = time.monotonic()
        self._go_on(now)
        self._workers = [w if w.poll() is None else self._start() for w in self._workers]
        for what, every in EVERY.items():
            if gentle or now < self._next[what] or (victim := self._busy_one()) is None:
                continue
            if what == "killed":
                victim.kill()
                victim.wait()
            else:
                victim.send_signal(signal.SIGSTOP)
                self._paused[victim.pid] = now + PAUSE
            self.counts[what] += 1
            self._next[what] = now + every * random.uniform(0.5, 1.5)

    def end(self) -> None:
        """Resume paused workers and wait for all; kill those that do not end."""
        while self._paused:
            self._go_on(time.monotonic())
            time.sleep(0.05)
        for worker in self._workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL, start_new_session=True)

    def _go_on(self, now: float) -> None:
        for worker in self._workers:
            if self._paused.get(worker.pid, now + 1) <= now:
                worker.send_signal(signal.SIGCONT)
                del self._paused[worker.pid]

    def _busy_one(self) -> "subprocess.Popen[bytes] | None":
        """Return a worker in the middle of a message, or None. One worker is always left alone."""
        free = [w for w in self._workers if w.pid not in self._paused]
        busy = [w for w in free if w.poll() is None and self._queue.is_working(w.pid)]
        return random.choice(busy) if busy and len(free) > 1 else None


DUPLICATES = 0.3  # the share of messages that are sent twice
_LINE_EVERY = 2.0  # seconds between lines of figures
_PATIENCE = 30.0  # seconds beyond --seconds; then the demo gives up


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
    with (
        tempfile.TemporaryDirectory(prefix="onceward-demo-") as name,
        closing(connected(Path(name, LEDGER))) as effects,
    ):
        effects.execute(CREATE)
        try:
            proven = _run(Path(name), effects, [f"message-{n:04}" for n in range(messages)], seconds, workers)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    raise typer.Exit(0 if proven else 1)


def _run(folder: Path, effects: sqlite3.Connection, messages: list[str], seconds: float, workers: int) -> bool:
    queue = DemoQueue(folder)
    twice = queue.create(messages, DUPLICATES)
    typer.echo(
        f"{len(messages)} messages, {twice} of them sent twice, to {workers} workers with a lease of {LEASE:g} s.\n"
        f"In the middle of their work, workers are killed (SIGKILL), or paused for {PAUSE:g} s (SIGSTOP) and woken as zombies."
    )
    chaos = Chaos(folder, queue, workers, min(1.0, 0.6 * seconds * workers / (len(messages) + twice)))

    def counts() -> dict[str, int]:
        deliveries = Counter(queue.outcomes())
        return {
            "delivered": deliveries["delivered"],
            "effects": effects.execute(COUNT).fetchone()[0],
            "duplicates replayed": deliveries["replayed"],
            "workers killed": chaos.counts["killed"],
            "workers paused": chaos.counts["paused"],
            "zombies refused": deliveries["refused"],
            "still in the queue": queue.waiting(),
        }

    began = time.monotonic()
    next_line = began
    try:
        while queue.waiting() and time.monotonic() < began + seconds + _PATIENCE:
            chaos.step(gentle=time.monotonic() > began + seconds)
            if time.monotonic() >= next_line:
                typer.echo(", ".join(f"{name} {count}" for name, count in counts().items()))
                next_line = time.monotonic() + _LINE_EVERY
            time.sleep(0.05)
        chaos.end()
    finally:
        chaos.kill()
    charges = Counter(message for (message,) in effects.execute(EFFECTS))
    return _prove(charges, messages, counts(), time.monotonic() - began)


def _prove(charges: Counter[str], messages: list[str], counts: dict[str, int], seconds: float) -> bool:
    """Print what the effects' own table says."""
    missing = [message for message in messages if message not in charges]
    doubled = [message for message, times in charges.items() if times > 1]
    replayed, zombies = counts["duplicates replayed"], counts["zombies refused"]
    plain = counts["effects"] + replayed + zombies
    typer.echo(
        f"{counts['delivered']} deliveries, {counts['workers killed']} kills, {counts['workers paused']} pauses in "
        f"{seconds:.1f} s; {zombies} zombies were refused, {replayed} duplicates replayed.\n"
        f"{plain} deliveries reached the point of their effect. Without onceward, at least once, that would be "
        f"{plain - len(messages)} effects too many.\n"
        f"The table of effects, which has no unique constraint, holds {sum(charges.values())}: "
        f"{len(missing)} missing, {len(doubled)} doubled."
    )
    proven = not (missing or doubled) and charges.keys() == set(messages)
    typer.echo(
        f"Exactly once: all {len(messages)} messages took effect, each one time."
        if proven
        else f"NOT exactly once. Missing: {missing[:5]}, doubled: {doubled[:5]}"
    )
    return proven
