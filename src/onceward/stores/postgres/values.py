"""How values are sent to PostgreSQL. Lists are written by columns.

In a batch most columns have one value only, and the others one type: whole columns cost a third of what single values do.
"""

from collections.abc import Sequence
from typing import Any


def sent(values: Sequence[Any]) -> list[str | None]:
    """Return a statement's values as texts. The statement says their types, so that it is prepared once."""
    return [value if value is None or type(value) is str else text_of(value) for value in values]


def text_of(value: Any) -> str:
    """Return a value as PostgreSQL reads it: a number, a text, or a list of them."""
    if type(value) is list:
        return "{" + _array(value) + "}" if value else "{}"
    return value if type(value) is str else repr(value)


def _array(values: list[Any]) -> str:
    first, count = values[0], len(values)
    if values.count(first) == count:
        return ",".join([_element(first)] * count)
    if None in values:
        return ",".join(map(_element, values))
    if type(first) is not str:
        return repr(values)[1:-1]
    text = "\0".join(values)
    if text.count("\0") != count - 1:
        raise ValueError("PostgreSQL keeps no NUL in a text")
    return '"' + _escaped(text).replace("\0", '","') + '"'


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    return f'"{_escaped(value)}"' if type(value) is str else repr(value)


def _escaped(text: str) -> str:
    if '"' in text or "\\" in text:
        return text.replace("\\", "\\\\").replace('"', '\\"')
    return text
