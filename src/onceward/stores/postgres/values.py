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
    if type(value) is list:
        return b"{" + _array(value) + b"}" if value else b"{}"
    text = value if type(value) is str else repr(value)
    if "\0" in text:
        raise ValueError("PostgreSQL keeps no NUL in a text")
    return text.encode()


def _array(values: list[Any]) -> bytes:
    first, count = values[0], len(values)
    if values.count(first) == count:
        return b",".join([_element(first)] * count)
    if None in values:
        return b",".join(map(_element, values))
    if type(first) is not str:
        return repr(values)[1:-1].encode()
    text = "\0".join(values)
    if text.count("\0") != count - 1:
        raise ValueError("PostgreSQL keeps no NUL in a text")
    return b'"' + _escaped(text).replace("\0", '","').encode() + b'"'


def _element(value: object) -> bytes:
    if value is None:
        return b"NULL"
    if type(value) is str:
        return b'"' + written_as(_escaped(value)) + b'"'
    return repr(value).encode()


def _escaped(text: str) -> str:
    if '"' in text or "\\" in text:
        return text.replace("\\", "\\\\").replace('"', '\\"')
    return text


def sent(values: Sequence[object]) -> list[str | None]:
    """Return a statement's values as texts, whose types the statement says: so that it is prepared once."""
    return [None if value is None else written_as(value).decode() for value in values]
