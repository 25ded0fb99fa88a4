"""Reads answers of HTTP/1.1 (RFC 9112), whoever carries the bytes.

:func:`reply` is a generator: start it with ``next``, send it whatever the connection gives, and ``b""`` at its end; it
returns the answer with StopIteration. It knows what these services send, and refuses the rest.
"""

from collections.abc import Generator
from typing import Final, NamedTuple

HEAD_LIMIT: Final = 65536  # bytes of a status line and headers, or of one line between chunks
_HEX: Final = b"0123456789abcdefABCDEF"


class Raw(NamedTuple):
    """An answer as it came.

    Attributes:
        status: of HTTP.
        head: the status line and the headers, in lower case.
        body: the content.
        reusable: whether the connection can carry another request.
    """

    status: int
    head: bytes
    body: bytes
    reusable: bool


class Unreadable(Exception):
    """The answer is not one that can be read; ``too_large`` when that is because of its size."""

    def __init__(self, message: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


def header(head: bytes, name: bytes) -> bytes | None:
    """Return the value of the first header with this name (in lower case), or None."""
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()


def reply(limit: int) -> Generator[None, bytes, Raw]:
    """Read one answer whose content has at most ``limit`` bytes.

    Raises:
        ConnectionResetError: the connection ended before the answer did.
        Unreadable: it is not HTTP/1, or too large.
    """
    data = _some((yield))
    while True:
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > HEAD_LIMIT:
                raise Unreadable("the answer has no end of its headers")
            data += _some((yield))
        head = data[:end].lower()
        data = data[end + 4 :]
        if not head.startswith(b"http/1.") or not head[9:12].isdigit():
            raise Unreadable("the answer is not one of HTTP/1")
        status = int(head[9:12])
        if status >= 200:
            break
        if not data:  # an interim answer (RFC 9110, 15.2): the final one follows
            data = _some((yield))
    persistent = head.startswith(b"http/1.1") and b"close" not in (header(head, b"connection") or b"")
    if b"chunked" in (header(head, b"transfer-encoding") or b""):
        body, rest = yield from _chunked(data, limit)
        return Raw(status, head, body, persistent and not rest)
    length = header(head, b"content-length")
    if status in {204, 304}:
        length = b"0"
    if length is None:
        return Raw(status, head, (yield from _until_closed(data, limit)), False)
    if not length.isdigit() or len(length) > 18:
        raise Unreadable("the answer's content-length is not a number")
    size = int(length)
    _check(size, limit)
    if len(data) < size:
        data = yield from _filled(data, size)
    return Raw(status, head, data[:size], persistent and len(data) == size)


def _filled(data: bytes, size: int) -> Generator[None, bytes, bytes]:
    """Read on until there are ``size`` bytes or more."""
    parts, have = [data], len(data)
    while have < size:
        parts.append(_some((yield)))
        have += len(parts[-1])
    return b"".join(parts)


def _until_closed(data: bytes, limit: int) -> Generator[None, bytes, bytes]:
    parts, have = [], 0
    while data or (data := (yield)):
        parts.append(data)
        have += len(data)
        _check(have, limit)
        data = b""
    return b"".join(parts)


def _chunked(data: bytes, limit: int) -> Generator[None, bytes, tuple[bytes, bytes]]:
    """Read chunks (RFC 9112, 7.1); return the content and what came after it."""
    parts: list[bytes] = []
    have = 0
    while True:
        line, data = yield from _line(data)
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(_HEX):
            raise Unreadable("the answer's chunks cannot be read")
        if (size := int(digits, 16)) == 0:
            break
        have += size
        _check(have, limit)
        if len(data) < size + 2:
            data = yield from _filled(data, size + 2)
        parts.append(data[:size])
        data = data[size + 2 :]
    while line:  # the trailer's end is an empty line
        line, data = yield from _line(data)
    return b"".join(parts), data


def _line(data: bytes) -> Generator[None, bytes, tuple[bytes, bytes]]:
    while (end := data.find(b"\r\n")) < 0:
        if len(data) > HEAD_LIMIT:
            raise Unreadable("the answer's chunks cannot be read")
        data += _some((yield))
    return data[:end], data[end + 2 :]


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the connection was closed before the answer was whole")
    return data


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise Unreadable(f"the answer has {size} bytes or more, and the limit is {limit}", too_large=True)
