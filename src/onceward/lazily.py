"""Names of a package that are imported when they are first used, so that a program pays only for what it needs."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, tuple[str, ...]], *, needs: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        homes: the names that each of its modules has.
        needs: the libraries that its extra installs.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    module = sys.modules[package]

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(import_module(home_of[name], package), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in needs:
                raise
            extra = package.rpartition(".")[2]
            raise ModuleNotFoundError(
                f"{package} needs {error.name}: pip install 'onceward[{extra}]'", name=error.name
            ) from error
        setattr(module, name, value)
        return value

    return load, lambda: list(module.__all__)


def at(where: str) -> Any:
    """Return what is at ``MODULE:NAME``."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def required(module: str, what: str, extra: str) -> None:
    """Raise ImportError unless a module is installed. The text says that ``what`` needs it, and which extra brings it."""
    try:
        import_module(module)
    except ImportError as missing:
        raise ImportError(f"{what} needs its client: pip install 'onceward[{extra}]'") from missing
