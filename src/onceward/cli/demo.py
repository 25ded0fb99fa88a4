"""``onceward demo``: kills and pauses workers in the middle of their work, and proves that this does no harm."""

import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from onceward.cli.demo_chaos import Chaos
from onceward.cli.demo_queue import LEASE, LEDGER, PAUSE, DemoQueue, connected
from onceward.terminal import drawn

DUPLICATES = 0.3  # of the messages are sent twice
_LINE_EVERY = 2.0  # seconds, where there is no terminal
_PATIENCE = 30.0  # seconds beyond the given ones after which something is wrong

MessagesOption = Annotated[int, typer.Option(min=1, metavar="N", help="Messages to send.")]
SecondsOption = Annotated[float, typer.Option(min=1, metavar="S", help="Seconds, roughly, to kill and pause workers.")]
WorkersOption = Annotated[int, typer.Option(min=2, metavar="N", help="Worker processes.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the files, so that you can look at them.")]


class Counts(NamedTuple):
    """What has happened so far."""

    effects: int
    told: dict[str, int]
    kills: int
    pauses: int


def demo(
    *,
    messages: MessagesOption = 400,
    seconds: SecondsOption = 15.0,
    workers: WorkersOption = 6,
    keep: KeepOption = False,
) -> None:
    """Kill and pause workers in the middle of their work, and prove that each message took effect exactly once.

    Exit status: 0 the proof holds, 1 it does not.
    """
    folder = Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    try:
        proven = _run(folder, [f"message-{n:04}" for n in range(messages)], seconds, workers)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        if keep:
            typer.echo(f"The files are in {folder}: sqlite3 {folder / LEDGER} 'SELECT * FROM effects'")  # noqa: S608 - for a person to run
        else:
            _remove(folder)
    raise typer.Exit(0 if proven else 1)


def _run(folder: Path, messages: list[str], seconds: float, workers: int) -> bool:
    effects = connected(folder / LEDGER)
    effects.execute("CREATE TABLE effects (message TEXT NOT NULL, worker INTEGER NOT NULL, attempt INTEGER NOT NULL)")
    queue = DemoQueue(folder)
    twice = queue.create(messages, DUPLICATES)
    console = Console(file=drawn(sys.stdout), highlight=False)
    console.print(
        f"{len(messages)} messages, {twice} of them sent twice, to {workers} workers with a lease of {LEASE:g} s.\n"
        f"Workers are killed (SIGKILL), or paused for {PAUSE:g} s (SIGSTOP) and woken as zombies, in the middle of the work.",
        soft_wrap=True,
    )
    chaos = Chaos(folder, queue, workers, min(1.0, 0.6 * seconds * workers / (len(messages) + twice)))

    def counts() -> Counts:
        done = effects.execute("SELECT count(*) FROM effects").fetchone()[0]
        return Counts(done, queue.told(), chaos.kills, chaos.pauses)

    began = time.monotonic()
    try:
        with (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live
        ):
            next_line = began
            while queue.left() and time.monotonic() < began + seconds + _PATIENCE:
                chaos.step(gentle=time.monotonic() > began + seconds)
                if live is not None:
                    live.update(_table(counts(), len(messages), queue.left()), refresh=True)
                elif time.monotonic() >= next_line:
                    console.print(_line(counts(), queue.left()), soft_wrap=True)
                    next_line = time.monotonic() + _LINE_EVERY
                time.sleep(0.05)
        chaos.end()
    finally:
        chaos.kill()
    made = Counter(message for (message,) in effects.execute("SELECT message FROM effects"))
    return _prove(console, made, messages, counts(), time.monotonic() - began)


def _prove(console: Console, made: Counter[str], messages: list[str], counts: Counts, seconds: float) -> bool:
    """Print what the effects' own table says."""
    missing = [message for message in messages if message not in made]
    doubled = [message for message, times in made.items() if times > 1]
    foreign = [message for message in made if message not in set(messages)]
    told = counts.told
    plain = counts.effects + told.get("replayed", 0) + told.get("refused", 0)
    console.print(
        f"{told.get('delivered', 0)} deliveries, {counts.kills} kills, {counts.pauses} pauses in {seconds:.1f} s; "
        f"{told.get('refused', 0)} zombies were refused, {told.get('replayed', 0)} duplicates replayed.\n"
        f"[bold]{plain}[/bold] deliveries came to the point of their effect: handled plainly, at least once, that would "
        f"be {plain - len(messages)} effects too many.\n"
        f"The table of effects, which has no unique constraint, holds [bold]{sum(made.values())}[/bold]: "
        f"{len(missing)} missing, {len(doubled)} doubled.",
        soft_wrap=True,
    )
    proven = not (missing or doubled or foreign)
    console.print(
        f"[bold green]Exactly once: all {len(messages)} messages took effect, each one time.[/]"
        if proven
        else f"[bold red]NOT exactly once.[/] Missing: {missing[:5]}, doubled: {doubled[:5]}"
    )
    return proven


def _rows(counts: Counts, left: int) -> list[tuple[str, int]]:
    told = counts.told
    return [
        ("delivered", told.get("delivered", 0)),
        ("effects", counts.effects),
        ("duplicates replayed", told.get("replayed", 0)),
        ("workers killed", counts.kills),
        ("workers paused", counts.pauses),
        ("zombies refused", told.get("refused", 0)),
        ("still in the queue", left),
    ]


def _table(counts: Counts, messages: int, left: int) -> Table:
    table = Table(show_header=False)
    for name, count in _rows(counts, left):
        table.add_row(name, f"{count} of {messages}" if name == "effects" else str(count))
    return table


def _line(counts: Counts, left: int) -> str:
    return ", ".join(f"{name} {count}" for name, count in _rows(counts, left))


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
