"""What the commands of all workers share: their options, their exit statuses, and a run."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from math import inf
from typing import NoReturn, Protocol, TypeVar

import typer

from onceward.batch.outcomes import BatchOutcome
from onceward.cli.ledgers import USAGE, refuse
from onceward.cli.report import WorkReport, heard
from onceward.consumers.stop import signals
from onceward.consumers.worker import Worker
from onceward.errors import OncewardError
from onceward.once import Once
from onceward.outbox import sender

DONE, LEFT, ONLY_MALFORMED, FAILED, INTERRUPTED, BROKEN = 0, 1, 3, 4, 130, 141
_TICK = 0.2  # seconds between two looks at what is in flight
_MOMENT = 0.05  # seconds between two looks at what is not sent
_PATIENCE = 3.0  # seconds without a message that was sent, after which the rest is left to a relay
M = TypeVar("M")


class ReportedWorker(Worker[M]):
    """A worker that reports each message. Derive from this first, and then from the worker."""

    wants_values = True
    report: WorkReport

    def told(self, outcome: BatchOutcome) -> None:
        super().told(outcome)
        self.report.outcome(outcome)


class Working(Protocol):
    """What :func:`work` runs: every :class:`ReportedWorker` is one."""

    report: WorkReport

    @property
    def in_flight(self) -> int: ...

    @property
    def stopping(self) -> bool: ...

    def run(self, *, until_empty: bool = False) -> None: ...

    def stop(self) -> None: ...


def work(
    once: Once,
    make: Callable[[], Working],
    *,
    until_empty: bool,
    grace: float | None,
    as_json: bool,
    report: WorkReport | None = None,
) -> NoReturn:
    """Run a worker until it is told to stop, and end the command."""
    report = report or WorkReport(as_json=as_json)
    try:
        worker = make()
    except (ValueError, TypeError, ImportError) as error:
        refuse(str(error), USAGE)
    worker.report, report.stop = report, worker.stop
    status, end = _run(worker, report, until_empty=until_empty)
    report.summary(end, "the queue is empty")
    once.close()
    if report.broken is not None:
        status = BROKEN if isinstance(report.broken, BrokenPipeError) else LEFT
    if status == INTERRUPTED or grace is not None:
        sys.stderr.flush()
        os._exit(status)  # a called function may still run in its thread; its key stays claimed to the end of its lease
    raise typer.Exit(status)


def _run(worker: Working, report: WorkReport, *, until_empty: bool) -> tuple[int, str]:
    """Work; return the exit status, and why it ended if the queue was not empty."""
    ended = threading.Event()

    def tick() -> None:
        told = False
        while not ended.wait(_TICK):
            if worker.stopping and not told:
                report.say(
                    "stopping: waiting for running calls and the poll under way; a second signal interrupts them"
                )
                told = True
            report.tick(worker.in_flight)

    report.start()
    ticks = threading.Thread(target=tick, name="onceward-ticks", daemon=True)
    ticks.start()
    try:
        with heard(report, logging.INFO if report.as_json else logging.WARNING):
            worker.run(until_empty=until_empty)
            unsent = _unsent(inf if until_empty and not worker.stopping else sender.AT_EXIT)
    except KeyboardInterrupt:
        return (
            INTERRUPTED,
            "interrupted: the keys of the calls that were running stay claimed to the end of their leases",
        )
    except (OncewardError, ValueError) as error:
        return FAILED, f"stopped: {error}"
    finally:
        ended.set()
        ticks.join()
    if worker.stopping or not until_empty:
        return DONE, "; ".join(["stopped", *unsent])
    counts = report.counts
    if unsent or any(counts[kind] for kind in ("failed", "parked", "mismatch", "busy")):
        return LEFT, "; ".join(unsent)
    return (ONLY_MALFORMED if counts["malformed"] else DONE), ""


def drained(most: float, progress: Callable[[], int], stopped: Callable[[int], object]) -> int:
    """Send what was completed, as long as any leaves, and return how many records are left for a relay.

    Args:
        most: seconds in all.
        progress: returns a number that changes when a message leaves.
        stopped: returns whether to stop; it is told how many records are left.
    """
    began = since = time.monotonic()
    before = progress()
    while left := sender.drain(_TICK):
        now = time.monotonic()
        if (done := progress()) != before:
            before, since = done, now
        if stopped(left) or now - began >= most or now - since >= _PATIENCE:
            break
        time.sleep(_MOMENT)
    return left


def _unsent(most: float) -> list[str]:
    """Send what was completed, and return what to say of the rest, which the ledger has."""
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    def interrupt() -> None:
        raise KeyboardInterrupt

    with signals(stop, interrupt):
        left = drained(most, lambda: len(sender.SENDER), lambda _: stopped)
    refused = sender.SENDER.refused
    told = [f"the messages of {left} record(s) are not sent yet: onceward relay sends them"] if left else []
    return told + ([f"targets have refused {refused} message(s) for good"] if refused else [])
