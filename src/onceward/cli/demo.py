"""``onceward demo``: kills and pauses workers in the middle of their work, and proves that this does no harm."""

import math
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from onceward.cli.demo_worker import LEASE, connected
from onceward.cli.ledgers import TROUBLE, refuse

_CREATE: Final = (
    "CREATE TABLE onceward_demo_effects (message TEXT NOT NULL, worker INTEGER NOT NULL, attempt INTEGER NOT NULL)"
)
_EFFECTS: Final = "SELECT message FROM onceward_demo_effects"
_STRIKES: Final = {"killed": 0.5, "paused": 0.9}  # seconds on average between two workers that are
_VISIBILITY: Final = 0.8  # seconds after which a delivery that was not acknowledged is delivered again
_PAUSE: Final = 1.7  # seconds that a worker is paused: longer than its lease, so that its successor can finish
_DUPLICATES: Final = 0.3  # the share of messages that are sent twice
_LINE_EVERY: Final = 2.0  # seconds between lines of figures
_PATIENCE: Final = 30.0  # seconds beyond --seconds; then the demo gives up
_ENDING: Final = 10.0  # seconds in which a worker without work ends


class DemoWorker:
    """A worker process, the delivery that it has, and when it goes on if it is paused."""

    def __init__(self, arguments: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True)
        self.delivery: int | None = None
        self.is_working = False
        self.paused_until: float | None = None


class Chaos:
    """A queue, and worker processes that are killed, or paused to go on as zombies.

    Attributes:
        counts: deliveries, their outcomes, and how many workers were killed and paused.
        waiting: the deliveries that nobody has acknowledged, and when a worker can get each.
    """

    def __init__(self, arguments: list[str], messages: list[str], workers: int) -> None:
        self.counts: Counter[str] = Counter()
        self.waiting = dict.fromkeys(range(len(messages)), 0.0)
        self._messages = messages
        self._arguments = arguments
        self._workers = [DemoWorker(arguments) for _ in range(workers)]
        self._next = dict.fromkeys(_STRIKES, time.monotonic() + 1)

    def step(self, *, gentle: bool) -> None:
        """Do what is due; when ``gentle``, kill and pause nobody."""
        outputs: dict[Any, DemoWorker] = {worker.process.stdout: worker for worker in self._workers}
        for output in select.select(outputs, [], [], 0.02)[0]:
            worker, said = outputs[output], output.read(4096).decode().split()
            self._hear(worker, said)
            if not said:  # it has ended, so another one takes its place
                with worker.process:
                    self._workers[self._workers.index(worker)] = DemoWorker(self._arguments)
        now = time.monotonic()
        for worker in self._workers:
            if worker.paused_until is not None and worker.paused_until <= now:
                worker.paused_until = None
                worker.process.send_signal(signal.SIGCONT)
            if worker.paused_until is None and worker.delivery is None:
                self._deliver(worker, now)
        for what, every in _STRIKES.items():
            free = [worker for worker in self._workers if worker.paused_until is None]
            working = [worker for worker in free if worker.is_working]
            if not gentle and now >= self._next[what] and working and len(free) > 1:  # one is always left alone
                self._strike(random.choice(working), what, now)
                self._next[what] = now + every * random.uniform(0.5, 1.5)

    def end(self) -> None:
        """Wait until all workers have ended."""
        for worker in self._workers:
            worker.process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                output, _ = worker.process.communicate(timeout=_ENDING)
                self._hear(worker, output.decode().split())

    def kill(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.process.kill()
            with worker.process:
                pass

    def _deliver(self, worker: DemoWorker, now: float) -> None:
        number = next((number for number, visible in self.waiting.items() if visible <= now), None)
        if number is not None and worker.process.stdin is not None:
            self.waiting[number] = now + _VISIBILITY
            self.counts["delivered"] += 1
            worker.delivery = number
            worker.process.stdin.write(f"{self._messages[number]}\n".encode())

    def _hear(self, worker: DemoWorker, said: list[str]) -> None:
        for what in said:
            self.counts[what] += 1
            worker.is_working = what == "claimed"
            if what in {"effect", "replayed"} and worker.delivery is not None:
                self.waiting.pop(worker.delivery, None)
            if what != "claimed":
                worker.delivery = None

    def _strike(self, worker: DemoWorker, what: str, now: float) -> None:
        self.counts[what] += 1
        if what == "killed":
            worker.paused_until = math.inf  # it gets no more work, and goes when its output ends
            worker.process.kill()
        else:
            worker.paused_until = now + _PAUSE
            worker.process.send_signal(signal.SIGSTOP)


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
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as name, closing(connected(Path(name))) as effects:
        effects.execute(_CREATE)
        try:
            proven = _run(Path(name), effects, [f"message-{n:04}" for n in range(messages)], seconds, workers)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    raise typer.Exit(0 if proven else 1)


def _run(folder: Path, effects: sqlite3.Connection, messages: list[str], seconds: float, workers: int) -> bool:
    twice = random.sample(messages, int(len(messages) * _DUPLICATES))
    sent = [*messages, *twice]
    random.shuffle(sent)
    typer.echo(
        f"{len(messages)} messages, {len(twice)} of them sent twice, to {workers} workers with a lease of {LEASE:g} s.\n"
        f"In the middle of their work, workers are killed (SIGKILL), or paused for {_PAUSE:g} s (SIGSTOP) and woken as zombies."
    )
    work = min(1.0, 0.6 * seconds * workers / len(sent))
    chaos = Chaos([sys.executable, "-m", "onceward.cli.demo_worker", str(folder), str(work)], sent, workers)
    began = time.monotonic()
    next_line = began
    try:
        while chaos.waiting and time.monotonic() < began + seconds + _PATIENCE:
            chaos.step(gentle=time.monotonic() > began + seconds)
            if time.monotonic() >= next_line:
                figures = "".join(f"{what} {count}, " for what, count in chaos.counts.items())
                typer.echo(f"{figures}{len(chaos.waiting)} still in the queue")
                next_line = time.monotonic() + _LINE_EVERY
        chaos.end()
    finally:
        chaos.kill()
    effects_made = Counter(message for (message,) in effects.execute(_EFFECTS))
    return _prove(effects_made, Counter(messages), chaos.counts, time.monotonic() - began)


def _prove(effects: Counter[str], expected: Counter[str], counts: Counter[str], seconds: float) -> bool:
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
