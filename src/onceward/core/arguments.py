"""One way to refuse an argument of another type: before anything has run, and with what to give."""

from typing import Any


def check_type(name: str, value: object, kinds: Any, give: str) -> None:
    """Raise TypeError if an argument has another type. Its value is not shown: it may be a secret.

    Args:
        name: the argument's, and whose it is, as in ``Once(store)``.
        value: what was given.
        kinds: the types that it may have, as for ``isinstance``; or a name of an attribute that it must have.
        give: what to give, for the error.
    """
    if not (hasattr(value, kinds) if isinstance(kinds, str) else isinstance(value, kinds)):
        raise TypeError(f"{name}: a value of type {type(value).__name__} was given; give {give}")
