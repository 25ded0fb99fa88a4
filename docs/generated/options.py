"""The options of a guard, from the docstring and the defaults of `Policy`."""

from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from generated.docstrings import attributes
from generated.markdown import code, table
from onceward.core.policy import DAY, Options, Policy

_HEAD = """## All options

A *policy* is the set of options of a guard. Give the options as keywords:

- to `Once(...)`: the defaults of all its handlers;
- to `@once(...)`, `once.batch`, `once.checkpoint`, `once.per`, a decorator of `onceward.aws`, or a middleware of `onceward.web`:
  for one handler;
- to `once.using(...)`: for `once.run`, `once.claim`, `once.acquire` and `once.transaction`.

If a value is wrong, or two options contradict each other, you get `ValueError` or `TypeError` where you give them.

"""


def part() -> str:
    """Return the section."""
    said = attributes(Policy)
    kinds = get_type_hints(Options)
    rows = [
        (code(name), said[name], _default(Policy._field_defaults[name]), _kind(kinds[name])) for name in Policy._fields
    ]
    return _HEAD + table(("option", "meaning", "default", "type"), rows)


def _default(value: object) -> str:
    if isinstance(value, float) and value >= DAY:
        return f"{value / DAY:.0f} days"
    return code(f"{value:g}" if isinstance(value, float) else repr(value))


def _kind(kind: object) -> str:
    if get_origin(kind) in {Union, UnionType}:
        return " or ".join(_kind(one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(code(repr(one)) for one in get_args(kind))
    name = kind.__name__ if type(kind) is type else str(kind)
    return code(name.replace("collections.abc.", "").replace("NoneType", "None"))
