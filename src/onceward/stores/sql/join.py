"""Which driver a connection of the caller's is of. A library is imported only if the connection is of it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def driver_of(kinds: Mapping[str, str], connection: object, seconds: float, known: str) -> Any:
    """Return the driver of a connection.

    Args:
        kinds: by the class of a connection, with its package, the module and the name of what makes its driver.
        connection: the caller's.
        seconds: how long one statement may take.
        known: which connections there are, for the message.

    Raises:
        TypeError: it is none of these.
    """
    for kind in type(connection).__mro__:
        where = kinds.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        if where is not None:
            module, _, name = where.partition(":")
            make: Callable[[object, float], object] = getattr(import_module(module), name)
            return make(connection, seconds)
    raise TypeError(f"{type(connection).__name__}: give {known}")
