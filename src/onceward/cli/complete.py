"""``onceward complete``: run half-done keys to their end, with the arguments that their records keep."""

import asyncio
import select
from typing import Any

import typer

from onceward import terminal
from onceward.claim.completer import Completer, Function, KeepingHandler, decorated
from onceward.claim.guard import Guard
from onceward.claim.handler import handler_of
from onceward.cli.ledgers import (
    INTERRUPTED,
    JsonOption,
    OnceOption,
    refuse,
    say,
    seconds,
    usage,
)
from onceward.consumers.stop import Stop, signals
from onceward.errors import OncewardError, StoreError
from onceward.pipe.functions import imported

DONE, LEFT, FAILED = 0, 1, 4


def complete(
    *,
    call: list[str],
    look_once: OnceOption = False,
    every: str = "30s",
    released: str | None = None,
    json: JsonOption = False,
) -> None:
    """Finish half-done keys: run the handler of a key whose worker vanished, with the arguments in its record.

    Guard the function with [bold]@once(key=..., keep_input=True)[/bold], on the ledger that its module names. It may be
    async. Each lapsed key is claimed, and its handler runs. Recorded steps are not run again. The handler's options
    count: each run is an attempt, and max_attempts and on_lapse="park" can park the key. Several of these commands
    share the work. They skip a key that another worker has. DynamoDB reads the whole table each time.

    SIGTERM or ctrl-C ends it after the running key. A second signal interrupts the handler.

    Example: [bold]onceward complete --call shop:place --every 1m[/bold]

    Exit status: [bold]0[/bold] stopped, or with --once: nothing is left to do; [bold]1[/bold] with --once: some failed
    or are left as they are; [bold]2[/bold] usage; [bold]4[/bold] with --once: the ledger failed; [bold]130[/bold]
    interrupted while a handler was running, also by its sys.exit.

    Options:
        call (MODULE:FUNCTION): The guarded function. Can be repeated, for functions of one ledger.
        every (T): How often to look, as 30s, 10m or 1h.
        released (T): Also run keys whose handlers failed, and that nobody has retried for T. By default:
            only lapsed keys.
    """
    pause, age = seconds("--every", every), seconds("--released", released)
    if not pause:
        refuse(f"--every {every}: give a positive duration")
    handlers = [_handler(target) for target in call]
    urls = sorted({one.guard.store.url for one in handlers})
    if len(urls) > 1:
        refuse(f"--call: these functions are on several ledgers, {' and '.join(urls)}: run a command for each")
    stop = Stop()
    with usage():
        completer = Completer(handlers, age, lambda: stop.asked)
    status = DONE
    try:
        with signals(stop.ask), asyncio.Runner() as runner:
            while not stop.asked:
                status = _look(completer, runner, json=json)
                if look_once:
                    break
                select.select([stop.wake], [], [], pause)  # an event has a lock, which a signal handler must not take
    except (KeyboardInterrupt, SystemExit) as end:
        key = "the key whose handler was running stays claimed to the end of its lease"
        refuse(f"ended by {end!r}: {key}", INTERRUPTED)
    raise typer.Exit(status if look_once else DONE)


def _look(completer: Completer, runner: asyncio.Runner, *, json: bool) -> int:
    """Look once; return the exit status."""

    def call(guard: Guard, key: str, mark: None, function: Function, *given: Any) -> object:
        if handler_of(function).is_async:
            try:
                return runner.run(guard.call_async(key, mark, function, *given))
            except asyncio.CancelledError as error:  # nobody else cancels here
                raise OncewardError("the handler was cancelled") from error
        return guard.call(key, mark, function, *given)

    try:
        sweep = completer.run(call)
    except OncewardError as error:
        say(str(error))
        return FAILED if isinstance(error, StoreError) else LEFT
    counts = sweep._asdict()
    if json:
        typer.echo(terminal.json(counts))
    elif any(sweep):
        typer.echo(", ".join(f"{number} {what}" for what, number in counts.items() if number))
    return LEFT if sweep.failed or sweep.left else DONE


def _handler(target: str) -> KeepingHandler:
    with usage():
        handler = decorated(imported(target))
    if handler is None:
        refuse(f"--call {target}: give a function that you decorate with @once(key=..., keep_input=True)")
    return handler
