"""Celery: tasks that take effect once, although brokers and retries deliver them again.

- ``guarding`` has the decorator under ``@app.task``, and the class for ``base=``.
- ``delivery`` translates how a guarded call ends, and ``ends`` publishes what must come again.
- ``doctor`` says which settings of an application lose tasks.
- ``target`` sends messages of the outbox as tasks.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.celery.guarding import OnceTask, exactly
    from onceward.celery.target import CeleryTarget

__all__ = ["CeleryTarget", "OnceTask", "exactly"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(".target" if name == "CeleryTarget" else ".guarding", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
