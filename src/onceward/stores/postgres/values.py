"""How values are sent to libpq, and how its results become rows. Lists, and results of many rows, are handled by columns.

In a batch most columns have one value only, and the others one type: whole columns cost a third of what single values do.
"""

from collections.abc import Callable, Sequence
from struct import Struct, unpack
from typing import Any, Final

from psycopg.pq.abc import PGresult

from onceward.stores.sql.queries import Row

_LONG, _DOUBLE = Struct(">q"), Struct(">d")
_EPOCH: Final = 946_684_800_000_000  # a timestamptz is microseconds since 2000
_BIGINT, _TEXT, _FLOAT8, _TIMESTAMPTZ = 20, 25, 701, 1184
# Binary values by the oid of their type: no setting of the session changes how they look.
_LOADERS: Final[dict[int, Callable[[bytes], Any]]] = {
    16: b"\x01".__eq__,
    _BIGINT: lambda value: _LONG.unpack(value)[0],
    23: lambda value: int.from_bytes(value, "big", signed=True),
    _TEXT: bytes.decode,
    _FLOAT8: lambda value: _DOUBLE.unpack(value)[0],
    # Microseconds are exact in a float of seconds for this century and the next.
    _TIMESTAMPTZ: lambda value: (_LONG.unpack(value)[0] + _EPOCH) / 1e6,
}
_CODES: Final = {_BIGINT: "q", _FLOAT8: "d", _TIMESTAMPTZ: "q"}  # of struct


def rows_of(result: PGresult) -> list[Row]:
    """Return the rows of a result in the binary format."""
    count, columns = result.ntuples, range(result.nfields)
    if count > 1:
        return list(zip(*[_column(result, column, count) for column in columns], strict=True))
    if not count:
        return []
    get, kind = result.get_value, result.ftype
    return [[None if (value := get(0, at)) is None else _LOADERS[kind(at)](value) for at in columns]]


def _column(result: PGresult, column: int, count: int) -> Sequence[object]:
    get, oid = result.get_value, result.ftype(column)
    values = [get(row, column) for row in range(count)]
    load, first = _LOADERS[oid], values[0]
    if values.count(first) == count:
        return [None if first is None else load(first)] * count
    if None in values:
        return [None if value is None else load(value) for value in values]
    if oid not in _CODES:
        return [load(value) for value in values if value is not None]
    numbers = unpack(f">{count}{_CODES[oid]}", b"".join(values))  # type: ignore[arg-type]  # none is None
    return numbers if oid != _TIMESTAMPTZ else [(number + _EPOCH) / 1e6 for number in numbers]


def written_as(value: Any) -> bytes:
    """Return a statement's value as libpq takes it."""
    text = text_of(value)
    if "\0" in text:
        raise ValueError("PostgreSQL keeps no NUL in a text")
    return text.encode()


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
