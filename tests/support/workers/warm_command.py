"""Runs what the pipe FD brings, ``onceward`` or a project's ``manage.py``, in forks of a process that has imported it: WHAT FD. It costs a tenth."""

import atexit
import contextlib
import gc
import importlib
import io
import os
import runpy
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import NoReturn

# What commands import when they run, by their store or queue.
LIBRARIES = {
    "onceward": "botocore.session psycopg psycopg_pool pymysql redis.asyncio starlette.applications uvicorn",
    "manage.py": "django.contrib.admin django.core.management.commands.migrate django.core.management.commands.shell "
    "django.test",
}


def next_command(channel: Connection) -> list[str]:
    """Fork for each command; in the child, take its streams, folder and environment, and return its arguments."""
    gc.freeze()
    while True:
        try:
            arguments, folder, environment = channel.recv()
        except EOFError:
            os._exit(0)
        fds = [recv_handle(channel) for _ in range(3)]
        child = os.fork()
        if not child:
            break
        for fd in fds:
            os.close(fd)
        channel.send(child)
        channel.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    channel.close()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder  # as `python -m` does
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    return arguments


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
    _, what, descriptor = sys.argv
    for library in LIBRARIES[what].split():
        importlib.import_module(library)
    if what == "onceward":
        from onceward.cli.app import command_line, run

        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            command_line()(args=["ls", "--help"])  # which imports all, also what typer takes to read arguments
        sys.argv = ["onceward", *next_command(Connection(int(descriptor)))]
        end(run)
    sys.argv = next_command(Connection(int(descriptor)))
    sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
    end(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
