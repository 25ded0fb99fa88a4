"""Servers and workers of tests end with the run that started them, also when that is killed: a watchdog, this file, waits for its end."""

import contextlib
import ctypes
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

RUN = "ONCEWARD_RUN"  # the id of the run's process: pytest's first one, or the torture campaign
_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None)


def begin_run() -> None:
    """Let this process be the run."""
    os.environ[RUN] = str(os.getpid())


def watched(
    process: subprocess.Popen, ending: signal.Signals = signal.SIGKILL, scratch: Path | None = None
) -> subprocess.Popen:
    """Return the process, which ends with the run: with its group if it leads one, and with its folder ``scratch``."""
    told = {"pid": process.pid, "ending": ending, "scratch": scratch and str(scratch)}
    os.write(_watchdog(), json.dumps(told).encode() + b"\n")
    return process


@functools.cache
def _watchdog() -> int:
    """Start the watchdog of what this process starts; return the pipe to it."""
    reading, writing = os.pipe()
    run = os.environ.get(RUN) or str(os.getpid())
    files = [(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2))]
    program = [sys.executable, "-S", "-E", __file__, run]
    os.posix_spawn(sys.executable, program, os.environ, file_actions=files, setsid=True)
    os.close(reading)
    return writing


def die_with(parent: int) -> None:
    """Let this process, which ``parent`` has just forked, be killed when its parent ends."""
    _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _watch(run: int) -> None:
    processes: dict[int, dict] = {}  # by a descriptor that no later process can take
    poller = select.poll()
    end = os.pidfd_open(run)
    for descriptor in (end, 0):
        poller.register(descriptor, select.POLLIN)
    heard = b""
    while True:
        ready = {descriptor for descriptor, _ in poller.poll()}
        if 0 in ready:
            chunk = os.read(0, 65536)
            if not chunk:  # who started them is gone; they may serve others of the run
                poller.unregister(0)
            *lines, heard = (heard + chunk).split(b"\n")
            for line in lines:
                told = json.loads(line)
                with contextlib.suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(told["pid"])
                    processes[descriptor] = told
                    poller.register(descriptor, select.POLLIN)
        for descriptor in ready & set(processes):
            del processes[descriptor]
            poller.unregister(descriptor)
            os.close(descriptor)
        if end in ready:
            break
    for descriptor, told in processes.items():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(told["pid"]) == told["pid"]:
                os.killpg(told["pid"], told["ending"])
            else:
                signal.pidfd_send_signal(descriptor, told["ending"])
    for descriptor, told in processes.items():
        if told["scratch"]:
            wait([descriptor], 10)
            shutil.rmtree(told["scratch"], ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
