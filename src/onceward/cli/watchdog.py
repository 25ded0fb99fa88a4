"""A small process that outlives this one, to kill the commands that run when this one is killed.

Commands run in sessions of their own, so that ctrl-C does not hit them. Without a watchdog a command would go on after
``kill -9`` of onceward, with nobody renewing its lease, and the next run would start it again beside it.

The file is run as a script, without any import of onceward: it starts in some 10 ms, once per ``onceward pipe``.
"""

import os
import signal
import subprocess
import sys


def watch(fd: int) -> None:
    """Keep account of ``+group`` and ``-group`` lines; at their end, kill the groups that are left."""
    groups: set[int] = set()
    with os.fdopen(fd, "rb", buffering=0) as lines:
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it ended just then


class Watchdog:
    """The writing end: tells the process which commands run."""

    def __init__(self) -> None:
        reading, self._fd = os.pipe()
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", __file__, str(reading)],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            pass_fds=[reading],
            start_new_session=True,
        )
        os.close(reading)

    def started(self, group: int) -> None:
        """Kill ``group`` should this process be killed."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """Leave ``group`` alone; to be called before the process is reaped and its number given to another."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the watchdog."""
        os.close(self._fd)
        self._process.wait()

    def _tell(self, line: str) -> None:
        try:
            os.write(self._fd, line.encode())  # shorter than PIPE_BUF, hence whole, whichever threads write
        except BrokenPipeError:
            pass  # somebody killed the watchdog; the commands do not suffer for it


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_number, signal.SIG_IGN)
    watch(int(sys.argv[1]))
