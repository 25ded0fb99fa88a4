"""The names that a key path can begin with: a handler's parameters, or a fixed name while no handler is known."""

from functools import partial
from typing import NamedTuple


class Roots(NamedTuple):
    """The names that a path can begin with."""

    names: tuple[str, ...]
    fault: str  # the error text for any other name: "names no parameter of charge(order)"
    start: str  # the prefix of a payload's field in a path, such as "order"; empty when there is no input
    claim: str | None = None  # the parameter that takes the claim; no key can be read from it
    fixed: str | None = None  # the name of the input where no function is known; here it is a mistake

    def named(self, value: object) -> dict[str, object]:
        """Return the only input under its name; in a list for ``*args``."""
        name = self.names[0]
        return {name: value if self.start == name else [value]}


def fixed(name: str, what: str) -> Roots:
    """Return the only root of a face without a handler; ``what`` describes it to people."""
    return Roots((name,), f"does not start with {name}, which is {what}", name)


def name_of(function: object) -> str:
    """Return the name of a function in errors."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", "") or type(function).__qualname__
