"""Workers that are processes of their own, for tests that kill, pause and race them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from places import SOURCES, SUPPORT, WORKERS
from servers.orphans import watched
from waiting import until

PATIENCE = 120.0  # seconds that a worker may take on a slow machine


def freeze(pid: int) -> None:
    """Stop a process, and wait until all its threads stand: on a busy machine one may still answer after ``kill`` has returned."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: {state_of(thread) for thread in Path(f"/proc/{pid}/task").iterdir()} == {"T"})


def state_of(process: Path) -> str:
    """Return the letter of a process or thread, by its folder in /proc: ``T`` if it is stopped."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def is_alive(pid: int | str) -> bool:
    """Return whether a process still runs, and is no zombie."""
    try:
        return state_of(Path(f"/proc/{pid}")) != "Z"
    except OSError:  # it can also go between the two calls
        return False


@contextlib.contextmanager
def workers(script: str):
    """Give a function that starts workers running ``script``; whatever still runs at the end is killed."""
    started = []

    def start(*arguments, prefix=(), env=None) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{SUPPORT}", "PYTHONWARNINGS": "error", **(env or {})}
        command = [*prefix, sys.executable, str(WORKERS / script), *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, env=environment, **pipes)
        started.append(watched(process))
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def lines(process) -> list[str]:
    """Wait for a worker's end and return what it said."""
    output, _ = process.communicate(timeout=PATIENCE)
    return output.splitlines()
