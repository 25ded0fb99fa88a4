"""``onceward relay``: send the messages that nobody sends any more, or decide about refused ones."""

import threading
import time
from importlib import import_module
from math import inf
from typing import Annotated, Final

import typer
from typer import Option

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    LinesOption,
    OnceOption,
    SealOption,
    StoreOption,
    import_here,
    imported_seal,
    looking_at,
    opened,
    refuse,
    seconds,
)
from onceward.cli.report import RunReport, heard
from onceward.cli.work import drained
from onceward.consumers.stop import signals
from onceward.core.policy import Seal
from onceward.core.views import SOME_DAY
from onceward.errors import OncewardError
from onceward.observe.events import Happening, StoreRequest
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
_ENDING: Final = 15.0  # seconds in which a relay that is told to stop sends what it has taken


class RelayReport(RunReport):
    """The report of a relay.

    Attributes:
        left: the keys that were left alone, and why.
    """

    nothing = "nothing sent"

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(("sent", "refused", "send_failed"), as_json=as_json)
        self.left: dict[str, str] = {}

    def event(self, event: Happening) -> None:
        """Take in what happened."""
        if isinstance(event, StoreRequest) or event.kind not in self.counts:
            return
        messages = event.messages or 1
        error = describe(event.error) if isinstance(event.error, Exception) else event.error
        with self.lock:
            self.counts[event.kind] += messages
            if self.as_json:
                fields = {"outcome": event.kind, "key": event.key, "messages": messages, "target": event.target}
                self._object({**fields, "error": error})

    def tick(self, waiting: int) -> None:
        """Show the figures."""
        with self.lock:
            self._screen.update(f"{self._summary()}; {waiting} record(s) under way")

    def _summary(self) -> str:
        return super()._summary().replace("send_failed", "not now")


def relay(
    *,
    store: StoreOption = DEFAULT_STORE,
    look_once: OnceOption = False,
    every: str = f"{EVERY:.0f}s",
    modules: Annotated[list[str] | None, Option("--import")] = None,
    seal: SealOption = None,
    retry: str | None = None,
    drop: str | None = None,
    json: LinesOption = False,
) -> None:
    """Send the messages of [bold]claim.send[/bold] that are still unsent: their process crashed, or the target could not take them.

    Workers and ASGI applications do the same beside their work. Run this command if your processes end after each call,
    or to see what is sent. Any number of relays share the work. Messages of one key keep their order. Sealed messages
    are sent only if --seal names the seal= of their guards. For your own targets, and tasks of
    [bold]once.enqueue[/bold], --import names the module that registers them.

    If a target refuses a message for good, it stays in the record, and [bold]onceward show KEY[/bold] shows why.
    --retry KEY sends it again, and --drop KEY forgets it.

    SIGTERM or ctrl-C ends it: requests under way are finished.

    Example: [bold]onceward relay --store dynamodb://ledger --once[/bold]

    With --once, it does not send messages that another process is sending, or that a target wants later. The summary
    says when these messages are due.

    Exit status: [bold]0[/bold] stopped, or with --once all that was due is sent; [bold]1[/bold] with --once: something
    is left; [bold]2[/bold] usage; [bold]4[/bold] the ledger failed; [bold]130[/bold] interrupted in the middle of
    requests.

    Options:
        every (T): How often to look, as 5s or 1m. While nothing is due, the pause doubles up to 1m.
        modules (MODULE): A module to import first. It can be in this directory.
        retry (KEY): Send the refused messages of a key again.
        drop (KEY): Forget the refused messages of a key.
    """
    if retry is not None and drop is not None:
        refuse("--retry and --drop: give one of them")
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
        refuse(str(error))
    except OncewardError as error:
        refuse(str(error), FAILED)
    with heard(report):
        status = _run(relaying, report, look_once=look_once)
    once.close()
    raise typer.Exit(status)


def _run(relaying: Relay, report: RelayReport, *, look_once: bool) -> int:
    """Relay in a thread, and wait for it and for signals in this one. Return the exit status."""
    ended, trouble = threading.Event(), list[Exception]()
    stops: list[bool] = []  # a signal handler takes no lock
    interrupted = False

    def work() -> None:
        try:
            report.left = relaying.run(until_empty=look_once)
        except Exception as error:
            trouble.append(error)
        finally:
            ended.set()

    def stopped(waiting: int) -> list[bool]:
        report.tick(waiting)
        return stops

    report.start()
    end = ""
    with signals(lambda: stops.append(True)):
        try:
            threading.Thread(target=work, name="onceward-relay", daemon=True).start()
            while not (stops or ended.is_set()):
                time.sleep(_TICK)
                report.tick(len(sender.SENDER))
            if not stops:
                drained(inf, stopped)
            if stops:
                end = "stopped"
                relaying.stop()
                ended.wait(_ENDING)
                drained(_ENDING, report.tick)
        except KeyboardInterrupt:
            interrupted = True
            end = "interrupted: what was being sent can be sent again"
    waiting = len(sender.SENDER)
    if trouble:
        end = f"stopped: {str(trouble[0]) if isinstance(trouble[0], OncewardError) else describe(trouble[0])}"
    report.summary(
        end or (_later(relaying.wait) if look_once else ""),
        "nothing more is due",
        {"left": waiting + len(report.left)},
    )
    if interrupted:
        return INTERRUPTED
    if trouble:
        return FAILED
    return LEFT if look_once and (waiting or report.left or report.counts["refused"]) else DONE


def _later(wait: float | None) -> str:
    """Return when messages are due that nobody could send now; "" if there are none."""
    if wait is None or wait >= SOME_DAY:  # which are refused
        return ""
    return f"further messages are unsent, and not due before {max(1.0, wait):.0f} s from now"


def _decide(store: str, key: str, *, again: bool, json: bool) -> None:
    with looking_at(store) as ledger:
        entries = (retry_refused if again else drop_refused)(ledger, key)
    what = "is sent again" if again else "is forgotten"
    for entry in entries:
        fields = {"to": entry.to, "key": entry.key, "refused": entry.refused}
        typer.echo(
            as_json_line(fields)
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
        except (Exception, SystemExit) as error:
            refuse(f"--import {module}: it cannot be imported: {describe(error)}")
    return imported_seal(seal)
