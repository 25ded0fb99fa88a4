"""Runs ``onceward`` in forks of a process that has imported it, which costs a tenth of a new interpreter's time.

``python warm_command.py FD``: the socket brings commands, each with its three standard streams, and takes the process id and
the exit status of each. It ends with the socket.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from onceward.cli.app import command_line, run

# What commands import when they run, by their store or queue.
LIBRARIES = (
    "botocore.session",
    "psycopg",
    "psycopg_pool",
    "pymysql",
    "redis.asyncio",
    "starlette.applications",
    "uvicorn",
)


def received(channel: socket.socket) -> tuple[dict, list[int]]:
    """Return the next command and its streams; ends the process when there is none."""
    data, fds, _, _ = socket.recv_fds(channel, 4, 3)
    if len(data) < 4:
        os._exit(0)
    size, body = struct.unpack("!I", data)[0], b""
    while len(body) < size:
        body += channel.recv(size - len(body))
    return json.loads(body), fds


def forked(channel: socket.socket) -> tuple[dict, list[int]]:
    """Fork for each command, and return in the child only."""
    while True:
        asked, fds = received(channel)
        child = os.fork()
        if not child:
            channel.close()
            return asked, fds
        for fd in fds:
            os.close(fd)
        channel.sendall(struct.pack("!i", child))
        channel.sendall(struct.pack("!i", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def next_command() -> list[str]:
    """Fork for each command that the socket brings; in the child, take its streams, folder and environment, and return its arguments."""
    for library in LIBRARIES:
        importlib.import_module(library)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command_line()(args=["ls", "--help"])  # which imports all, also what typer takes to read arguments
    gc.freeze()
    asked, fds = forked(socket.socket(fileno=int(sys.argv[1])))
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[0] = asked["folder"]  # as `python -m` does
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    return asked["arguments"]


def end(main: Callable[[], object]) -> NoReturn:
    """Call ``main`` and end as an interpreter does, but leave what the fork has inherited: that takes longer than most commands."""
    status: int | str | None = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    sys.argv = ["onceward", *next_command()]
    end(run)
