"""The name of this worker, which each claim carries: host and process, or what a platform calls it."""

import os
from contextvars import ContextVar

NAMED: ContextVar[str | None] = ContextVar("onceward_worker", default=None)  # of the request that runs in this context


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
    for _ in range(3):  # Python drops an interrupt that ends a hook
        os.register_at_fork(after_in_child=_renew)
