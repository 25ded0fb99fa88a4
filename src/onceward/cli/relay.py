"""``onceward relay``: send the messages that nobody sends any more, or decide about refused ones."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Final

import typer
from typer import Option

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    USAGE,
    SealOption,
    StoreOption,
    import_here,
    imported_seal,
    looking_at,
    opened,
    refuse,
    said,
    seconds,
)
from onceward.cli.relay_report import RelayReport
from onceward.consumers.stop import signals
from onceward.core.policy import Seal
from onceward.core.protocol import SOME_DAY
from onceward.errors import OncewardError
from onceward.observe.observers import Observers
from onceward.outbox import sender
from onceward.outbox.pending import drop_refused, retry_refused
from onceward.outbox.relay import EVERY, Relay
from onceward.outbox.tasks import TaskJobs
from onceward.results.outcomes import describe
from onceward.terminal import json as as_json_line
from onceward.terminal import line, quoted

DONE, LEFT, FAILED, INTERRUPTED = 0, 1, 4, 130
_TICK: Final = 0.1  # seconds
_PATIENCE: Final = 3.0  # seconds without a message that was sent, after which --once ends
_ENDING: Final = 15.0  # seconds in which a relay that is told to stop sends what it has taken

HELP = r"""
Send the messages of [bold]claim.send[/bold] that are still unsent: their process crashed, or the target did not take them.

SQS workers and ASGI applications do the same beside their work. Run this command for processes that end after each call, or to
watch. Any number of relays share the work. Messages of one key keep their order. Sealed messages are left, unless --seal names the
seal= of their guards. A target of your own is known if --import names the module that registers it, and so are the tasks of [bold]once.enqueue[/bold].

A message that its target refuses for good stays in the record, and [bold]onceward show KEY[/bold] shows why. --retry KEY lets it be
sent again, and --drop KEY forgets it.

SIGTERM or ctrl-C ends it: requests under way are finished.

Example: [bold]onceward relay --store dynamodb://ledger --once[/bold]

With --once, it sends nothing that another process has, or that a target wants later. The summary says when those are due.

Exit status: [bold]0[/bold] stopped, or with --once all that was due is sent; [bold]1[/bold] with --once: something is left; [bold]2[/bold] usage;
[bold]4[/bold] the ledger failed; [bold]130[/bold] interrupted in the middle of requests.
"""

OnceOption = Annotated[bool, Option("--once", help="Send what is due now, then end.")]
EveryOption = Annotated[
    str, Option(metavar="T", help="How often to look, as 5s or 1m. While nothing is due, the pause doubles up to 1m.")
]
ImportOption = Annotated[
    list[str] | None,
    Option("--import", metavar="MODULE", help="A module to import first. It can lie in this directory."),
]
LimitOption = Annotated[int | None, Option(min=1, metavar="N", help="At most N records.", show_default="all")]
RetryOption = Annotated[
    str | None, Option("--retry", metavar="KEY", help="Let the refused messages of a key be sent again.")
]
DropOption = Annotated[str | None, Option("--drop", metavar="KEY", help="Forget the refused messages of a key.")]
JsonOption = Annotated[bool, Option("--json", help="Write one JSON object per record, and per line of the log.")]


def relay(
    *,
    store: StoreOption = DEFAULT_STORE,
    look_once: OnceOption = False,
    every: EveryOption = f"{EVERY:.0f}s",
    modules: ImportOption = None,
    seal: SealOption = None,
    limit: LimitOption = None,
    retry: RetryOption = None,
    drop: DropOption = None,
    json: JsonOption = False,
) -> None:
    """Send until told to stop. HELP lists the exit statuses."""
    if retry is not None and drop is not None:
        refuse("--retry and --drop: give one of them", USAGE)
    if (key := retry if retry is not None else drop) is not None:
        _decide(store, key, again=retry is not None, json=json)
        return
    pause, pair = seconds("--every", every) or 0.0, _prepared(modules or [], seal)
    with looking_at(store, FAILED):
        pass  # there is a ledger
    once, report = opened(store), RelayReport(as_json=json)
    try:
        relaying = Relay(once, seal=pair, every=pause, observers=Observers([report.event]))
        relaying.check()
    except (ValueError, TypeError) as error:
        refuse(str(error), USAGE)
    except OncewardError as error:
        refuse(said(error), FAILED)
    with _heard(report):
        status = _run(relaying, report, limit, look_once=look_once)
    once.close()
    raise typer.Exit(status)


def _run(relaying: Relay, report: RelayReport, limit: int | None, *, look_once: bool) -> int:
    """Relay in a thread, and wait for it and for signals in this one. Return the exit status."""
    ended, trouble = threading.Event(), list[Exception]()
    stopped = interrupted = False

    def work() -> None:
        try:
            report.left = relaying.run(limit, until_empty=look_once)
        except Exception as error:
            trouble.append(error)
        finally:
            ended.set()

    def stop() -> None:  # a signal handler: it takes no lock
        nonlocal stopped
        stopped = True

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    report.start()
    end = ""
    with signals(stop, interrupt):
        try:
            threading.Thread(target=work, name="onceward-relay", daemon=True).start()
            while not (stopped or ended.is_set()):
                time.sleep(_TICK)
                report.tick(len(sender.SENDER))
            if stopped:
                end = "stopped"
                relaying.stop()
                ended.wait(_ENDING)
            _drain(report, float("inf") if look_once and not stopped else _ENDING)
        except KeyboardInterrupt:
            end = "interrupted: what was being sent can be sent again"
    left = len(sender.SENDER)
    if trouble:
        end = f"stopped: {said(trouble[0]) if isinstance(trouble[0], OncewardError) else describe(trouble[0])}"
    report.summary(end or (_later(relaying.wait) if look_once else ""), left)
    if interrupted:
        return INTERRUPTED
    if trouble:
        return FAILED
    return LEFT if look_once and (left or report.left or report.counts["refused"]) else DONE


def _later(wait: float | None) -> str:
    """Return when messages are due that nobody could send now; "" if there are none."""
    if wait is None or wait >= SOME_DAY:  # which are refused
        return ""
    return f"further messages are unsent, and not due before {max(1.0, wait):.0f} s from now"


def _drain(report: RelayReport, most: float) -> None:
    """Send what was taken. A target that fails gets some seconds; then its messages are left to the ledger."""
    began = progress = time.monotonic()
    done = report.done
    while (left := sender.drain(1.0)) and time.monotonic() - began < most and time.monotonic() - progress < _PATIENCE:
        if report.done != done:
            done, progress = report.done, time.monotonic()
        report.tick(left)
        time.sleep(_TICK)


def _decide(store: str, key: str, *, again: bool, json: bool) -> None:
    with looking_at(store) as ledger:
        entries = (retry_refused if again else drop_refused)(ledger, key)
    what = "is sent again" if again else "is forgotten"
    for entry in entries:
        told = {"to": entry.to, "key": entry.key, "refused": entry.refused}
        typer.echo(
            as_json_line(told)
            if json
            else f"{quoted(key)}: its message to {line(entry.to)} {what}: it has the key {entry.key}"
        )


def _prepared(modules: list[str], seal: str | None) -> Seal | None:
    """Import modules, and return the seal."""
    import_here()
    TaskJobs.alone = True
    for module in modules:
        try:
            import_module(module)
        except Exception as error:
            refuse(f"--import {module}: it cannot be imported: {describe(error)}", USAGE)
    return imported_seal(seal)


class _Log(logging.Handler):
    def __init__(self, report: RelayReport) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report.log(record.levelname.lower(), record.getMessage())


@contextmanager
def _heard(report: RelayReport) -> Iterator[None]:
    log, handler = logging.getLogger("onceward"), _Log(report)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
