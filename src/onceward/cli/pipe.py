"""``onceward pipe``: run a command, or call a function, once for each key in a stream of NDJSON lines."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from onceward.claim.guard import Guard
from onceward.cli.ledgers import DEFAULT_STORE, USAGE, StoreOption, opened, refuse
from onceward.consumers.stop import Stop
from onceward.core.clock import boottime
from onceward.core.policy import Policy
from onceward.errors import Mismatch, OncewardError
from onceward.keys.ledger_keys import checked_name, ledger_key
from onceward.keys.paths import StrictPath
from onceward.once import Once
from onceward.pipe.call import Call
from onceward.pipe.commands import Command
from onceward.pipe.jobs import LineReader
from onceward.pipe.lines import LINE, STDIN, Lines
from onceward.pipe.progress import shown
from onceward.pipe.report import Rejects, Report
from onceward.pipe.run import STORE, Run
from onceward.pipe.runner import Handler, Runner
from onceward.pipe.screen import quoted

MOST_JOBS = 1000  # each has a thread
WAIT_BEYOND = 5.0  # seconds to wait beyond a lease, so that what a killed run left behind has lapsed
_COMMANDS = "onceward.pipe"  # the namespace under which each name's command is remembered

HELP = r"""
Run COMMAND once for each key in a stream of NDJSON lines, ever.

The line is the command's standard input. {line.id} in its arguments is replaced by the id of the line, never
through a shell ({{ and }} are literal braces). Code for a shell must be the same for every line: give it arguments, as in
[bold]-- sh -c 'charge "$1"' sh '{line.id}'[/bold]. Its output is recorded and printed; a duplicate prints the recorded output.
When the command fails, its key is given back, and the next run tries it again. Stopped by ctrl-C, kill -9 or a reboot, the
same command line again does only what is left; several at once, on one ledger, share the work.

The command finds ONCEWARD_KEY, ONCEWARD_ATTEMPT, ONCEWARD_FENCE and ONCEWARD_DERIVED_KEY in its environment. The last is a
UUID that is the same on every attempt: hand it to services that take idempotency keys.

Example: [bold]onceward pipe orders.ndjson --key line.id -- ./charge.sh --amount '{line.amount}'[/bold]

Exit status: [bold]0[/bold] every line is done; [bold]1[/bold] some failed, are parked or busy; [bold]2[/bold] usage;
[bold]3[/bold] all are done but malformed lines; [bold]4[/bold] the ledger failed; [bold]130[/bold] interrupted;
[bold]141[/bold] nobody reads the output any more.
"""

FilesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="FILE", help="NDJSON files; none, or -, is the standard input.")
]
KeyOption = Annotated[
    str, typer.Option("--key", metavar="JMESPATH", help=r"What identifies a line: line.id, or \[line.shop, line.id].")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", min=1, max=MOST_JOBS, metavar="N", help="Lines to handle at a time.")
]
LeaseOption = Annotated[
    float, typer.Option(metavar="S", help="Seconds after which a killed run's keys may be taken over.")
]
AttemptsOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Failures after which a key is parked.", show_default="no limit")
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="S", help="Seconds to wait for a key that another worker holds.", show_default="lease + 5"
    ),
]
NameOption = Annotated[str, typer.Option(metavar="NAME", help="The namespace of the keys: one for each command.")]
NewOption = Annotated[bool, typer.Option("--new-only", help="Print nothing for lines that were done before.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, and a summary at the end.")]
RejectsOption = Annotated[str | None, typer.Option(metavar="FILE", help="Append malformed lines to FILE, as they are.")]
CallOption = Annotated[
    str | None, typer.Option(metavar="MODULE:FUNCTION", help="Call a Python function instead of a command.")
]


def pipe(
    context: typer.Context,
    *,
    key: KeyOption,
    files: FilesArgument = None,
    store: StoreOption = DEFAULT_STORE,
    jobs: JobsOption = 1,
    lease: LeaseOption = 60.0,
    max_attempts: AttemptsOption = None,
    wait: WaitOption = None,
    name: NameOption = "pipe",
    call: CallOption = None,
    new_only: NewOption = False,
    as_json: JsonOption = False,
    rejects: RejectsOption = None,
) -> None:
    """Handle every line; ends with the exit status that HELP tells of."""
    once = opened(store)
    stop = Stop()
    sources = files or [STDIN]
    try:
        policy = Policy(lease=lease, max_attempts=max_attempts, retention=None).checked()
        prefix = checked_name(name)
        _check_command(call, context.obj or [], sources)
        _check_files(sources, rejects)
        function = None if call is None else Call(call)
        roots = LINE if function is None else function.roots
        path = StrictPath(key, "key", roots)
        handler: Handler = function or Command(context.obj, stop, once.store.max_result)
    except (ValueError, TypeError) as error:
        refuse(str(error), USAGE)
    try:
        _own(once, prefix, handler)
        spill = Rejects(rejects)
        lines = Lines(sources, stop, spill.add)
        report = Report(shown(lines.total), stop, as_json=as_json, new_only=new_only)
        runner = Runner(once.store, policy, handler, lease + WAIT_BEYOND if wait is None else wait)
        reader = LineReader(prefix, path, roots, handler.prepare)
        status = Run(lines, reader, runner, report, stop=stop, rejects=spill).run(jobs)
        runner.close()
    finally:
        handler.close()
    once.close()
    raise typer.Exit(status)


def _check_command(call: str | None, argv: Sequence[str], sources: Sequence[str]) -> None:
    if call is not None and argv:
        raise ValueError("give a command after -- or --call MODULE:FUNCTION, not both")
    if call is None and not argv:
        missing = next((name for name in sources if name != STDIN and not Path(name).exists()), None)
        hint = "" if missing is None else f" ({missing} is no file; is it the command?)"
        raise ValueError(f"no command: put it after --, as in: onceward pipe FILE --key line.id -- ./charge.sh{hint}")


def _check_files(sources: Sequence[str], rejects: str | None) -> None:
    taken = None if rejects is None else Path(rejects)
    for name in sources:
        if name == STDIN:
            continue
        path = Path(name)
        if not path.exists():
            raise ValueError(f"{name}: no such file")
        if path.is_dir():
            raise ValueError(f"{name}: a directory; name the files in it")
        if not os.access(path, os.R_OK):
            raise ValueError(f"{name}: this user may not read it")
        if taken is not None and taken.exists() and taken.samefile(path):
            raise ValueError(f"--rejects {rejects}: that is the input itself")
    if taken is not None and (taken.is_dir() or not os.access(taken if taken.exists() else taken.parent, os.W_OK)):
        raise ValueError(f"--rejects {rejects}: cannot be written")


def _own(once: Once, name: str, handler: Handler) -> None:
    """Make sure that no other command used the keys of ``name`` before; ends the command otherwise."""
    key = ledger_key(_COMMANDS, name)
    guard = Guard(once.store, Policy(lease=5.0, retention=None, on_busy=10.0), boottime)
    fingerprint = sha256(handler.identity.encode(errors="surrogateescape")).hexdigest()
    try:
        try:
            guard.call(key, fingerprint, lambda: handler.target, (), {})
        except Mismatch:
            other = guard.call(key, None, lambda: None, (), {})
            refuse(
                f"the keys named {name!r} in this ledger belong to another command.",
                USAGE,
                f"  before: {other}",
                f"  now:    {handler.target}",
                "Give --name to keep the two apart, so that each runs once per key, or",
                f"  onceward clear {quoted(key)} --store {quoted(once.store.url)}",
                "to go on under the same keys: what the one has done, the other will not do.",
            )
    except OncewardError as error:
        refuse(str(error), STORE)
