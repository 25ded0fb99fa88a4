"""``onceward relay``: send the messages that nobody sends any more, or decide about refused ones."""

import threading
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
from onceward.consumers.stop import Stop, signals
from onceward.core.views import SOME_DAY
from onceward.errors import OncewardError
from onceward.observe.events import Happening, StoreRequest
from onceward.observe.observers import Observers
from onceward.outbox import sender
from onceward.outbox.pending import decide_refused
from onceward.outbox.relay import EVERY, Relay
from onceward.outbox.tasks import TaskJobs
from onceward.results.outcomes import describe
from onceward.terminal import json as as_json_line
from onceward.terminal import line, quoted

DONE, LEFT, FAILED, INTERRUPTED = 0, 1, 4, 130
_TICK: Final = 0.1  # seconds
_ENDING: Final = 15.0  # seconds in which a relay that is told to stop sends what it has taken


class RelayReport(RunReport):
    """The report of a relay."""

    nothing = "nothing sent"

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(("sent", "refused", "send_failed"), as_json=as_json)

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
    if look_once + (retry is not None) + (drop is not None) > 1:
        refuse("give one of --once, --retry and --drop")
    if (key := retry if retry is not None else drop) is not None:
        _decide(store, key, again=retry is not None, json=json)
        return
    pause = seconds("--every", every) or 0.0
    import_here()
    TaskJobs.alone = True
    for module in modules or ():
        try:
            import_module(module)
        except (Exception, SystemExit) as error:
            refuse(f"--import {module}: it cannot be imported: {describe(error)}")
    pair = imported_seal(seal)
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
    trouble, left_alone, stop = list[Exception](), dict[str, str](), Stop()

    def work() -> None:
        try:
            left_alone.update(relaying.run(until_empty=look_once))
        except Exception as error:
            trouble.append(error)

    def asked(waiting: int) -> bool:
        report.tick(f"; {waiting} record(s) under way")
        return stop.asked

    thread = threading.Thread(target=work, name="onceward-relay", daemon=True)
    report.start()
    status, end = DONE, ""
    with signals(stop.ask):
        try:
            thread.start()
            while thread.is_alive() and not asked(len(sender.SENDER)):
                thread.join(_TICK)
            if not stop.asked:
                drained(inf, asked)
            if stop.asked:
                end = "stopped"
                relaying.stop()
                thread.join(_ENDING)
                drained(_ENDING, lambda _: False)
        except KeyboardInterrupt:
            status, end = INTERRUPTED, "interrupted: what was being sent can be sent again"
    left = len(sender.SENDER) + len(left_alone)
    if trouble:
        status = status or FAILED
        end = f"stopped: {str(trouble[0]) if isinstance(trouble[0], OncewardError) else describe(trouble[0])}"
    report.summary(
        end or (_later(relaying.wait) if look_once else ""),
        "messages that are due are left" if left else "nothing more is due",
        {"left": left},
    )
    return status or (LEFT if look_once and (left or report.counts["refused"]) else DONE)


def _later(wait: float | None) -> str:
    """Return when messages are due that nobody could send now; "" if there are none."""
    if wait is None or wait >= SOME_DAY:  # which are refused
        return ""
    return f"further messages are unsent, and not due before {max(1.0, wait):.0f} s from now"


def _decide(store: str, key: str, *, again: bool, json: bool) -> None:
    with looking_at(store) as ledger:
        entries = decide_refused(ledger, key, again=again)
    what = "is sent again" if again else "is forgotten"
    for entry in entries:
        fields = {"to": entry.to, "key": entry.key, "refused": entry.refused}
        typer.echo(
            as_json_line(fields)
            if json
            else f"{quoted(key)}: its message to {line(entry.to)} {what}: it has the key {entry.key}"
        )
