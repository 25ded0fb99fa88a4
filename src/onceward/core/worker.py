"""The name of this worker, which each claim records: host and process, or the platform's name for it."""

import os
from contextvars import ContextVar

NAMED: ContextVar[str | None] = ContextVar("onceward_worker", default=None)  # set per request


def _process() -> str:
    if function := os.environ.get("AWS_LAMBDA_FUNCTION_NAME"):
        return function
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "host")
    return f"{host}/{os.getpid()}".encode("ascii", "replace").decode()


def _renew() -> None:
    global process
    process = _process()


process = _process()
if hasattr(os, "register_at_fork"):
    for _ in range(3):  # an interrupt can end a hook, and Python drops it: run it again
        os.register_at_fork(after_in_child=_renew)
