"""Progress on the standard error: a bar on a terminal, a line now and then elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from onceward.terminal import decoded, drawing, lines, write_all

FIRST_LINE, LAST_LINE = 2.0, 60.0  # seconds until the first line, and between lines at most


class Shown:
    """Shows a run while it goes on: for logs, a line after two seconds, then at intervals that double up to a minute.

    The caller must let in one thread at a time.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._every = FIRST_LINE
        self._next = 0.0

    def start(self) -> None:
        self._next = time.monotonic() + self._every

    def update(self, read: int, text: str) -> None:
        """Show how many bytes are read and what became of the lines."""
        if time.monotonic() < self._next:
            return
        share = f"{100 * read / self._total:.0f}% read, " if self._total else ""
        self.say(f"onceward: {share}{text}\n")
        self._every = min(2 * self._every, LAST_LINE)
        self._next = time.monotonic() + self._every

    def out(self, chunks: Iterable[bytes]) -> None:
        """Write to the standard output, filtered when that is a terminal; raises OSError."""
        for chunk in (text.encode() for text in decoded(chunks)) if os.isatty(1) else chunks:
            write_all(1, chunk)

    def say(self, text: str) -> None:
        """Write to the standard error, filtered."""
        try:
            write_all(2, lines(text).encode())
        except OSError:
            pass  # nobody is left to be told

    def stop(self) -> None:
        pass


class _Bar(Shown):
    """For people: a bar that stays below all that is written."""

    def __init__(self, total: int | None) -> None:
        self._console = Console(file=drawing(sys.stderr), highlight=False)
        columns = [BarColumn(), TaskProgressColumn()] if total else []
        self._progress = Progress(
            *columns,
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            *([TimeRemainingColumn()] if total else []),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)
        self._shared = os.isatty(1)  # else the output goes elsewhere, and cannot disturb the bar

    def start(self) -> None:
        self._progress.start()
        # rich puts what is printed meanwhile above the bar, past the filter of the standard streams.
        for stream in {sys.stdout, sys.stderr}:
            if isinstance(stream, FileProxy):
                stream.write = _filtered(stream.write)  # type: ignore[method-assign, assignment]  # of this one object

    def update(self, read: int, text: str) -> None:
        self._progress.update(self._task, completed=read, description=text)

    def out(self, chunks: Iterable[bytes]) -> None:
        if self._shared:
            self._above("".join(decoded(chunks)))
        else:
            for chunk in chunks:
                write_all(1, chunk)

    def say(self, text: str) -> None:
        self._above(lines(text))

    def stop(self) -> None:
        self._progress.stop()

    def _above(self, text: str) -> None:
        if text:
            self._console.out(text.removesuffix("\n"), highlight=False)


def _filtered(write: Callable[[str], int]) -> Callable[[str], int]:
    return lambda text: write(lines(text))


def open_screen(total: int | None) -> Shown:
    """Return the progress that suits this standard error."""
    return _Bar(total) if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Shown(total)
