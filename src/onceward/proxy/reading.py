"""Reads an upstream's answer from its connection (RFC 9112). Strict: two readers must not disagree on where an answer ends."""

import re
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from onceward.proxy.connection import Connection
from onceward.wire.http1 import CHUNKED, HEAD_LIMIT, HEX, INTERIM, Unreadable, size_of, status_of

_PART: Final = 1 << 16  # bytes of a body that are passed on at once
_LAST_STATUS: Final = 599  # servers know no reason phrase beyond it
_BODILESS: Final = frozenset({204, 304})
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch  # RFC 9110, section 5.6.2
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch  # RFC 9110, section 5.5

Lines = list[tuple[bytes, bytes]]
Parts = AsyncGenerator[tuple[bytes, bool], None]


class AnswerHead(NamedTuple):
    """The head of an answer.

    Attributes:
        status: its code.
        headers: its lines, the names in lower case.
        size: bytes of its body; CHUNKED, or None if the connection's end ends it.
        persistent: whether the connection can carry another request after it.
    """

    status: int
    headers: Lines
    size: int | None
    persistent: bool


async def read_head(connection: Connection, method: str) -> AnswerHead:
    """Return the head of the final answer. Interim answers (1xx) are dropped: ASGI cannot pass them on.

    Raises:
        ConnectionResetError: the connection ended before.
        Unreadable: it is not HTTP/1, its length is not clear, or a server could not pass it on.
    """
    for _ in range(INTERIM + 1):
        head = await connection.until(b"\r\n\r\n", HEAD_LIMIT)
        lower = head.lower()
        if (status := status_of(lower)) >= 200:
            break
    else:
        raise Unreadable("there are only interim answers")
    if status > _LAST_STATUS:
        raise Unreadable(f"the answer has the status {status}")
    headers = [_line(line) for line in head.split(b"\r\n")[1:]]
    size = size_of(lower)
    has_end = size is not None
    if method == "HEAD" or status in _BODILESS:
        # Some applications send a body all the same. It must not become the answer to the next request.
        size, has_end = 0, method != "HEAD" and not size
    closes = any(name == b"connection" and b"close" in value.lower() for name, value in headers)
    return AnswerHead(status, headers, size, lower.startswith(b"http/1.1") and not closes and has_end)


async def read_body(connection: Connection, size: int | None) -> Parts:
    """Give the parts of a body, each with whether it is the last. The last one may be empty.

    Raises:
        ConnectionResetError: the connection ended before the body.
        Unreadable: its chunks cannot be read.
    """
    if size == CHUNKED:
        async for part in _chunks(connection):
            yield part, False
        yield b"", True
    elif size is None:
        while part := await connection.some(_PART):
            yield part, False
        yield b"", True
    else:
        while size > 0:
            part = _not_ended(await connection.some(min(size, _PART)))
            size -= len(part)
            yield part, not size
            if not size:
                return
        yield b"", True


async def _chunks(connection: Connection) -> AsyncGenerator[bytes, None]:
    while True:
        line = await connection.until(b"\r\n", HEAD_LIMIT)
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(HEX) or len(digits) > 16:
            raise Unreadable("the answer's chunks cannot be read")
        left = int(digits, 16)
        if not left:
            break
        while left:
            part = _not_ended(await connection.some(min(left, _PART)))
            left -= len(part)
            yield part
        if await connection.until(b"\r\n", 2):
            raise Unreadable("the size of a chunk of the answer is wrong")
    trailer = 0
    while line := await connection.until(b"\r\n", HEAD_LIMIT):  # trailers are dropped: ASGI cannot pass them on
        trailer += len(line)
        if trailer > HEAD_LIMIT:
            raise Unreadable("the answer's trailer has no end")


def _line(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    value = value.strip(b" \t")
    if not _NAME(name) or not _VALUE(value):
        raise Unreadable(f"the answer's header {name[:60]!r} has characters that a header cannot have")
    return name.lower(), value


def _not_ended(part: bytes) -> bytes:
    if not part:
        raise ConnectionResetError("the connection was closed before the answer was complete")
    return part
