"""What a key path may begin with: the parameters of a handler, or a fixed name where no handler is known yet."""

from functools import partial
from typing import NamedTuple


class Roots(NamedTuple):
    """The names that a path may begin with.

    Attributes:
        names: these names.
        fault: what is wrong with any other name, for an error: "names no parameter of charge(order)".
        start: what to write before the field of a payload, such as "order"; empty when there is no input at all.
        claim: the parameter that takes the claim, which no key can be read from.
        fixed: the name that stands for the input where no function is known; here it is a mistake.
    """

    names: tuple[str, ...]
    fault: str
    start: str
    claim: str | None = None
    fixed: str | None = None

    def named(self, value: object) -> dict[str, object]:
        """Return the only input there is by its name; as one of several for ``*args``."""
        name = self.names[0]
        return {name: value if self.start == name else [value]}


def fixed(name: str, what: str) -> Roots:
    """Return the only root of a face without a handler; ``what`` tells people what it is."""
    return Roots((name,), f"does not start with {name}, which is {what}", name)


def called(function: object) -> str:
    """Return how errors name a function."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", "") or type(function).__qualname__
