"""Strict paths over inputs: JMESPath that refuses whatever could hide that a part is missing; and the names that one can begin with."""

import re
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from onceward.keys.fields import field_of, plain

_STRICT = {"key", "at"}  # options whose parts must all be present
_LONG = 300  # characters of an expression that an error shows whole


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


class StrictPath:
    """A JMESPath expression (jmespath.org/specification.html) over inputs by name.

    Args:
        expression: the expression.
        option: its purpose; "key" and "at" refuse projections, which silently drop missing parts.
        roots: the names that it can begin with.

    Attributes:
        chain: the names in an expression such as ``order.id``; empty for any other form.

    Raises:
        ValueError: the expression is not valid, not fit for a key, or begins with another name.
    """

    def __init__(self, expression: str, option: str, roots: Roots) -> None:
        self.expression, self._compiled = expression, None
        self.chain = tuple(expression.split("."))
        self._roots = {self.chain[0]}
        if not all(name.isidentifier() and name.isascii() for name in self.chain):
            from onceward.keys.expressions import Expression  # jmespath takes 4 ms to load

            try:
                self._compiled = Expression(expression, strict=option in _STRICT)
            except ValueError as error:
                raise ValueError(f"{spelled(option, expression)} {error}") from error.__cause__
            self.chain, self._roots = self._compiled.chain, self._compiled.roots
        wrong = fault(option, expression, self._roots, roots)
        if wrong is not None:
            raise ValueError(wrong)

    def search(self, inputs: Mapping[str, object]) -> object:
        """Return what the expression finds in inputs by name, or None.

        Raises:
            KeyMissing: a function of the expression was given a missing or unfit part.
        """
        part: object = inputs
        for name in self.chain:
            if type(part) is not dict:
                break
            part = part.get(name)
        else:
            if self.chain and part is not None:
                return part
        if self._compiled is not None:
            return self._compiled.search({name: inputs[name] for name in self._roots})
        value: object = inputs
        for name in self.chain:
            value = field_of(value, name)
        return plain(value)


def fault(option: str, expression: str, names: set[str], roots: Roots) -> str | None:
    """Return what is wrong with the names an expression begins with, and the right spelling; None if all is right."""
    spelling = spelled(option, expression)
    wrong = sorted(names.difference(roots.names))
    if not roots.start:
        return f"{spelling} {roots.fault}, so there is nothing to read it from"
    if not names:
        return f"{spelling} is the same for every input; name a field, as in {spelled(option, roots.start + '.id')}"
    if roots.claim in wrong:
        return f"{spelling} names the claim, which onceward fills in; name another parameter"
    if not wrong:
        return None
    right = expression
    for name in filter(str.isidentifier, wrong):
        root = roots.start if name == roots.fixed else f"{roots.start}.{name}"
        right = re.sub(rf"""(?<![\w.@"'`]){re.escape(name)}(?!\w|\s*:)""", root, right)
    return f"{spelling} {roots.fault}; write {spelled(option, right if right != expression else f'{roots.start}.id')}"


def spelled(option: str, expression: str) -> str:
    """Return an option with its expression as people write it; command arguments have it in braces."""
    shown = expression if len(expression) <= _LONG else f"{expression[:40]}…"
    return f"{{{shown}}}" if option == "argument" else f"{option}={shown!r}"
