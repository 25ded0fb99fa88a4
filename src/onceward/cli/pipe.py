"""``onceward pipe``: run a command, or call a function, once for each key in a stream of NDJSON lines."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from typer import Argument, Option

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    AttemptsOption,
    LinesOption,
    NewOption,
    StoreOption,
    opened,
    refuse,
    usage,
)
from onceward.cli.report import PipeReport
from onceward.consumers.stop import Stop
from onceward.errors import OncewardError
from onceward.pipe import Command, Function, NameTaken, Pipe
from onceward.pipe.lines import STDIN
from onceward.pipe.outcomes import Why
from onceward.terminal import quoted

MOST_JOBS = 1000  # each has a thread
LEFT, LEDGER_FAILED = 1, 4
STATUS: Final[dict[Why, int]] = {
    "done": 0,
    "left": LEFT,
    "malformed": 3,
    "ledger": LEDGER_FAILED,
    "interrupted": 130,
    "unread": 141,
}


def pipe(
    context: typer.Context,
    *,
    key: str,
    files: Annotated[list[str] | None, Argument()] = None,
    store: StoreOption = DEFAULT_STORE,
    jobs: Annotated[int, Option("--jobs", "-j", min=1, max=MOST_JOBS)] = 1,
    lease: float = 60.0,
    max_attempts: AttemptsOption = None,
    wait: Annotated[float | None, Option(min=0)] = None,
    name: str = "pipe",
    call: str | None = None,
    new_only: NewOption = False,
    as_json: LinesOption = False,
    rejects: str | None = None,
) -> None:
    r"""Run COMMAND exactly once for each key in a stream of NDJSON lines.

    The command reads the line from its standard input. {line.id} in its arguments is replaced by the line's id, never
    through a shell. {{ and }} are literal braces. Code for a shell must be the same for every line: pass it arguments,
    as in [bold]-- sh -c 'charge "$1"' sh '{line.id}'[/bold]. The output is recorded and printed. A duplicate prints the
    recorded output. When the command fails, its key is given back, and the next run tries it again. After ctrl-C, kill
    -9 or a reboot, run the same command line again: it does only the lines that are left. Several runs at once on one
    ledger share the work.

    The command finds ONCEWARD_KEY, ONCEWARD_ATTEMPT, ONCEWARD_FENCE and ONCEWARD_DERIVED_KEY in its environment.
    ONCEWARD_DERIVED_KEY is a UUID that is the same on every attempt: pass it to services that take idempotency keys.

    Example: [bold]onceward pipe orders.ndjson --key line.id -- ./charge.sh --amount '{line.amount}'[/bold]

    Exit status: [bold]0[/bold] every line is done; [bold]1[/bold] some failed, are parked or busy; [bold]2[/bold] usage;
    [bold]3[/bold] all but malformed lines are done; [bold]4[/bold] the ledger failed; [bold]130[/bold] interrupted;
    [bold]141[/bold] the reader of the output is gone.

    Options:
        key (JMESPATH): What identifies a line: line.id, or \[line.shop, line.id]. With --call, use the name of the
            function's parameter.
        files (FILE): NDJSON files. Without one, or for -, the standard input.
        jobs (N): Lines to handle at a time.
        lease (S): Seconds until another run may take over the keys of a killed run.
        wait (S): Seconds to wait for a key that another worker holds. By default: lease + 5.
        name (NAME): The namespace of the keys. Give each command its own.
        call (MODULE:FUNCTION): Call a Python function instead of a command.
        rejects (FILE): Append malformed lines to FILE, as they are.
    """
    once = opened(store)
    stop = Stop()
    sources = files or [STDIN]
    with usage():
        _check_command(call, context.obj or [])
        _check_files(sources, rejects)
        handler = Command(context.obj, stop, once.store.max_result) if call is None else Function(call)
    try:
        with usage():
            engine = Pipe(
                once, handler, key=key, name=name, jobs=jobs, lease=lease, max_attempts=max_attempts, wait=wait
            )
        report = PipeReport(stop, as_json=as_json, new_only=new_only)
        end = engine.run(sources, reporter=report, rejects=rejects, stop=stop)
        report.end(end.text)
        unwritten = report.broken is not None and end.why != "unread"  # it broke while the summary was written
        status = LEFT if unwritten else STATUS[end.why]
        if end.running:
            os._exit(status)  # a called function still runs; its key stays claimed to the end of its lease
    except NameTaken as error:
        refuse(
            f"{error} Before: {error.before}; now: {handler.target}. To run both, each once per key, give --name. To go on under "
            f"the same keys, run `onceward clear {quoted(error.key)} --yes --store {quoted(once.store.url)}`. The new command then "
            "skips the keys that the old one has done"
        )
    except OncewardError as error:
        refuse(str(error), LEDGER_FAILED)
    finally:
        handler.close()
    once.close()
    raise typer.Exit(status)


def _check_command(call: str | None, argv: Sequence[str]) -> None:
    if call is not None and argv:
        raise ValueError("give a command after -- or --call MODULE:FUNCTION, not both")
    if call is None and not argv:
        raise ValueError("no command: put it after --, as in: onceward pipe FILE --key line.id -- ./charge.sh")


def _check_files(sources: Sequence[str], rejects: str | None) -> None:
    for path in (Path(name) for name in sources if name != STDIN):
        if not path.exists():
            raise ValueError(f"{path}: no such file")
        if rejects is not None and Path(rejects).exists() and path.samefile(rejects):
            raise ValueError(f"--rejects {rejects}: that is an input file")
