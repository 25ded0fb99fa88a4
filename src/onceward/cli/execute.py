"""``onceward exec``: run a command once for a key, or once in each window, on whatever machine comes first."""

import signal
import sys
from typing import Annotated, Final

import typer
from typer import Option

from onceward.cli.ledgers import (
    DEFAULT_STORE,
    USAGE,
    AttemptsOption,
    LapseOption,
    StoreOption,
    opened,
    refuse,
    say,
    usage,
)
from onceward.core.policy import Options
from onceward.errors import Busy, KeyMissing, LeaseLost, OncewardError, Parked, ResultUnavailable
from onceward.pipe.commands import CommandFailed, Interrupted
from onceward.pipe.execution import Execution, ExecutionEnd, NotStarted, OnFailure
from onceward.terminal import write_all

# 126: as a shell's; 69 and 75: EX_UNAVAILABLE and EX_TEMPFAIL of sysexits.h
CANNOT_RUN, LEDGER_FAILED, BUSY, PARKED = 126, 69, 75, 76
_STATUS: Final[dict[type, int]] = {Busy: BUSY, KeyMissing: USAGE, Parked: PARKED}
_MORE: Final[dict[type, str]] = {Busy: ", which here is --wait SECONDS", LeaseLost: ". The command has run"}


def execute(
    context: typer.Context,
    *,
    key: str,
    window: str | None = None,
    while_running: bool = False,
    on_failure: OnFailure | None = None,
    wait: Annotated[float, Option(min=0)] = 0.0,
    new_only: bool = False,
    lease: float = 60.0,
    max_attempts: AttemptsOption = None,
    on_lapse: LapseOption = "retry",
    name: str = "exec",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Run COMMAND once for a key, on the machine that comes first: for cron, CI and deploys.

    Later calls with the same key get the recorded exit status and output at once (after a failure, see --on-failure).
    With --window 1h it runs once in each hour, by the ledger's clock, not the machine's. With --while-running, only one
    call runs at a time.

    The lease is renewed while the command runs. If the machine loses the key, the command is killed. If the machine
    dies, the next call runs the command again when the lease is over. SIGTERM and ctrl-C reach the command. A second
    signal kills it. The command finds ONCEWARD_KEY, ONCEWARD_ATTEMPT, ONCEWARD_FENCE and, without --while-running,
    ONCEWARD_DERIVED_KEY in its environment.

    Example: [bold]onceward exec --key nightly-invoices --window 1d --new-only -- ./send-invoices.sh[/bold]

    Exit status: that of the command, also of an earlier run; [bold]2[/bold] usage; [bold]69[/bold] the ledger failed,
    or the key was lost; [bold]75[/bold] another machine runs it now; [bold]76[/bold] the key is parked;
    [bold]128[/bold] and more: a signal.

    Options:
        key (KEY): What identifies the work, as in deploy-$CI_COMMIT_SHA.
        window (T): Run once in each window of this length: 15m, 1h, 1d. Windows begin on the quarter hour, on the hour,
            at midnight UTC.
        while_running: Run only one command at a time. When it ends, the next call runs it again.
        on_failure: What the next call does after a failure: run the command again, or get the recorded output and exit
            status. By default: record with --window, else retry.
        wait (S): Seconds to wait for another machine that runs the command now.
        new_only: If the command ran before, or runs on another machine now, print nothing and exit with 0. For cron.
        lease (S): Seconds until the next call may run the command again, after a machine has died.
        name (NAME): The namespace of the keys.
    """
    if not context.obj:
        refuse("no command: put it after --, as in: onceward exec --key nightly -- ./job.sh")
    if while_running and (window is not None or on_failure is not None or max_attempts is not None):
        refuse("--while-running records nothing, so --window, --on-failure and --max-attempts have no use with it")
    once = opened(store)
    options: Options = {"lease": lease, "on_lapse": on_lapse, "max_attempts": max_attempts, "on_busy": wait or "raise"}
    with usage():
        execution = Execution(
            once,
            context.obj,
            key,
            name=name,
            window=window,
            while_running=while_running,
            on_failure=on_failure or ("retry" if window is None else "record"),
            options=options,
        )
    status = _run(execution, new_only=new_only)
    once.close()
    raise typer.Exit(status)


def _run(execution: Execution, *, new_only: bool) -> int:
    signal.signal(signal.SIGTSTP, lambda *_: None)  # a stopped process renews no lease, and its command would go on
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda heard, _: execution.hear(heard))
        return _end(execution.run(), execution, new_only=new_only)
    except NotStarted:
        say("a signal came before the command was started, so it did not run")
        return 128 + (execution.heard or 0)
    except Interrupted as error:
        say(f"{error}; nobody knows what it has done, so its key stays claimed to the end of its lease")
        return LEDGER_FAILED if execution.heard is None else 128 + execution.heard
    except CommandFailed as error:
        say(str(error))
        return CANNOT_RUN
    except OncewardError as error:
        if new_only and isinstance(error, Busy):
            return 0
        say(f"{error}{_MORE.get(type(error), '')}")
        return 0 if new_only and isinstance(error, ResultUnavailable) else _STATUS.get(type(error), LEDGER_FAILED)


def _end(ended: ExecutionEnd, execution: Execution, *, new_only: bool) -> int:
    if not ended.ran and not new_only:
        sys.stdout.flush()
        try:
            write_all(1, ended.end.output.data)
            write_all(2, ended.end.errors.data)
        except OSError:
            pass  # nobody reads
        except NotStarted:  # a signal came while the reader stood still
            return 128 + (execution.heard or 0)
    return 0 if new_only and not ended.ran else ended.end.exit_status
