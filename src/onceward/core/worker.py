"""Which process this is: its name, which each claim records, how many forks lie before it, and the name of its script.

The first two cost no system call.
"""

import os
import re
import sys
from contextvars import ContextVar
from typing import Final

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


MAIN: Final = frozenset({"__main__", "__mp_main__"})


def module_name(module: str) -> str:
    """Return a module's name; for a script, its import name, so that scripts do not share the keys of ``__main__``."""
    if module not in MAIN:
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in MAIN:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    if not file:
        return module
    *folders, last = re.split(r"[/\\]", os.path.abspath(file))
    # `python folder` and `python app.pyz` run the __main__.py inside
    script = folders[-1] if last == "__main__.py" and folders else last
    return re.sub(r"[\s:]", "_", script.removesuffix(".py"))
