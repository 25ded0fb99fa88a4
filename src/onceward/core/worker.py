"""Which process this is: its name, which each claim records, and how many forks lie before it. Reading them costs no system call."""

import os
from contextvars import ContextVar

NAMED: ContextVar[str | None] = ContextVar("onceward_worker", default=None)  # set per request


def _process() -> str:
    if function := os.environ.get("AWS_LAMBDA_FUNCTION_NAME"):
        return function
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "host")
    return f"{host}/{os.getpid()}".encode("ascii", "replace").decode()


def _forked() -> None:
    global process, generation
    process = _process()
    generation += 1


process = _process()  # host and process, or the platform's name for it
generation = 0  # how many forks lie between the first process and this one
if hasattr(os, "register_at_fork"):
    for _ in range(3):  # an interrupt can end a hook, and Python drops it: run it again
        os.register_at_fork(after_in_child=_forked)
