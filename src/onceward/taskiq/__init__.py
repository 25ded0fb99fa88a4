"""Taskiq: tasks that take effect once, although brokers and retries deliver them again."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.taskiq.exactly import exactly

__all__ = ["exactly"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(".exactly", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
