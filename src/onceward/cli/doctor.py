"""The command that looks for unsafe settings: doctor."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from typing import Annotated

import typer
from typer import Option

from onceward import terminal
from onceward.aws.doctor.look import diagnosis, facts_of
from onceward.cli.ledgers import (
    AttemptsOption,
    JsonOption,
    opened,
    refuse,
    say,
    seconds,
    usage,
)
from onceward.core.policy import Policy
from onceward.errors import OncewardError
from onceward.stores.inspection import LEVELS, Finding

UNSAFE, UNSEEN = 1, 2
_DEFAULTS = Policy()


def doctor(
    *,
    queue: str | None = None,
    store: Annotated[str | None, Option(envvar="ONCEWARD_STORE")] = None,
    lease: float = _DEFAULTS.lease,
    retention: str = f"{_DEFAULTS.retention:.0f}",
    max_attempts: AttemptsOption = None,
    function: str | None = None,
    celery: str | None = None,
    watch: str | None = None,
    json: JsonOption = False,
) -> None:
    """Say what is unsafe in the settings of a ledger, a queue of SQS and its Lambda functions, or a Celery application.

    It changes nothing. The exit status is 1 when something is unsafe, and 2 when doctor could not read a setting that you named.
    "skipped" means that doctor could not read this setting.

    With --watch 10m it checks again every ten minutes, and prints what is new. ctrl-C ends it.

    Options:
        queue (QUEUE): The queue of SQS: its URL, ARN or name.
        store (URL): The ledger that the queue's consumers use.
        lease (S): For --queue: the guard's lease=, in seconds.
        retention (S): For --queue: the guard's retention=, in seconds or as 14d; none if it never ends.
        max_attempts (N): For --queue: the guard's max_attempts=. By default: no limit.
        function (NAME): The Lambda function that consumes the queue. By default: all that are mapped to it.
        celery (APP): A Celery application: module or module:app, as for celery -A.
        watch (DURATION): Check again this often, and print what is new.
    """
    if {queue, store, celery} == {None}:
        refuse("say what to check: --queue, --celery, --store, or several of them")
    if function is not None and queue is None:
        refuse("--function needs --queue: doctor looks at the event source mappings of that queue")
    with usage():
        keep = None if retention.lower() == "none" else seconds("--retention", retention)
        policy = Policy(lease=lease, retention=keep, max_attempts=max_attempts).checked()
    pause = seconds("--watch", watch)
    if pause == 0:
        refuse(f"--watch {watch}: give a positive duration")

    def look() -> list[Finding]:
        with closing(opened(store)) if store is not None else nullcontext() as once, usage():
            facts = facts_of(policy, queue, function, None if once is None else once.store)
        findings = [*diagnosis(facts), *(_celery(celery) if celery is not None else ())]
        return sorted(findings, key=lambda finding: LEVELS.index(finding.level))

    if pause is not None:
        _watch(look, pause, json=json)
        return
    findings = look()
    levels = Counter(finding.level for finding in findings)
    if json:
        typer.echo(terminal.json({"findings": [finding._asdict() for finding in findings]}))
    else:
        counts = ", ".join(f"{level} {levels[level]}" for level in LEVELS if levels[level])
        typer.echo("\n".join([*map(_as_text, findings), counts]))
    raise typer.Exit(UNSAFE if "error" in levels else UNSEEN if "unknown" in levels else 0)


def _watch(look: Callable[[], list[Finding]], pause: float, *, json: bool) -> None:
    """Look again and again, and print what was not so before. What is away is told, and asked again."""
    before: list[Finding] = []
    with suppress(KeyboardInterrupt):
        while True:
            try:
                findings = look()
            except OncewardError as error:
                say(str(error))
            else:
                for finding in findings:
                    if finding not in before:
                        typer.echo(terminal.json(finding._asdict()) if json else _as_text(finding))
                before = findings
            sys.stdout.flush()
            time.sleep(pause)


def _celery(app: str) -> Iterator[Finding]:
    """Yield what is unsafe about a Celery application."""
    try:
        from celery.app.utils import find_app

        from onceward.celery.doctor import celery_findings
    except ImportError:
        refuse("--celery needs Celery: pip install 'onceward[celery]'")
    try:
        application = find_app(app)
    except (Exception, SystemExit) as error:  # the user's module raises anything
        refuse(f"--celery {app}: there is no Celery application: {error}")
    yield from celery_findings(application)


def _as_text(finding: Finding) -> str:
    lines = [f"{finding.level:<8} {finding.check}: {terminal.line(finding.says)}"]
    parts = (("why:", finding.why), ("fix:", finding.fix), ("see:", finding.source))
    return "\n".join(lines + [f"         {name} {terminal.line(text)}" for name, text in parts if text])
