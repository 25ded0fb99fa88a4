"""Reads HTTP/1.1 answers (RFC 9112) without I/O.

:func:`reply` is a generator. Start it with ``next``, send it the bytes of the connection, and ``b""`` at its end.
StopIteration carries the answer. It reads what these services send and refuses the rest.
"""

import re
from collections.abc import Generator
from typing import Final, NamedTuple

HEAD_LIMIT: Final = 65536  # bytes of a status line and headers, or of one line between chunks
HEX: Final = b"0123456789abcdefABCDEF"
INTERIM: Final = 8  # interim (1xx) answers that one request may get
CHUNKED: Final = -1
_CHUNKS: Final = "the answer's chunks cannot be read"
# A status line and headers, in lower case. No name contains a space, and no line is folded (RFC 9112, 5).
_HEAD: Final = re.compile(rb"http/1\.. (\d\d\d)(?: [^\0\r\n]*+)?(?:\r\n[^\0\r\n\t :]++:[^\0\r\n]*+)*+").fullmatch


class Raw(NamedTuple):
    """An answer as received."""

    status: int
    head: bytes  # the status line and the headers, in lower case
    body: bytes
    reusable: bool  # whether the connection can carry another request


class Unreadable(Exception):
    """The answer cannot be read.

    Attributes:
        too_large: whether its size is the reason.
    """

    def __init__(self, message: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


def header(head: bytes, name: bytes) -> bytes | None:
    """Return the first value of a header (name in lower case), or None."""
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()


def reply(limit: int, begun: list[Raw] | None = None) -> Generator[None, bytes, Raw]:
    """Read one answer whose content has at most ``limit`` bytes. ``begun`` gets it without content, as soon as its head is read.

    Raises:
        ConnectionResetError: the connection ended before the answer did.
        Unreadable: it is not HTTP/1, its length is stated twice or unclear, or it is too large.
    """
    data = _some((yield))
    for _ in range(INTERIM + 1):
        if (at := data.find(b"\r\n\r\n")) >= 0:  # most answers come as a whole
            head, data = data[:at].lower(), data[at + 4 :]
        else:
            head, data = yield from _until(b"\r\n\r\n", data, "the answer has no end of its headers")
            head = head.lower()
        if (match := _HEAD(head)) is None:  # strict, because a lenient parser can be tricked here
            raise Unreadable("the answer is not one of HTTP/1, or a line of its headers does not end as it should")
        if (status := int(match[1])) >= 200:
            break
        if status < 100 or status == 101:  # no request asks for another protocol
            raise Unreadable(f"the answer has the status {status}")
        # it is interim (RFC 9110, 15.2): the final answer follows
    else:
        raise Unreadable("there are only interim answers")
    if begun is not None:
        begun.append(Raw(status, head, b"", False))
    persistent = head.startswith(b"http/1.1") and b"close" not in (header(head, b"connection") or b"")
    if status in {204, 304}:
        return Raw(status, head, b"", persistent and not data)
    size = size_of(head)
    if size == CHUNKED:
        body, rest = yield from _chunked(data, limit)
        return Raw(status, head, body, persistent and not rest)
    if size is None:
        return Raw(status, head, (yield from _until_closed(data, limit)), False)
    _check(size, limit)
    if len(data) < size:
        data = yield from _filled(data, size)
    return Raw(status, head, data[:size], persistent and len(data) == size)


def size_of(head: bytes) -> int | None:
    """Return the content's size, :data:`CHUNKED`, or None if the connection's end ends it (RFC 9112, 6.3)."""
    lengths, codings = head.count(b"\r\ncontent-length:"), head.count(b"\r\ntransfer-encoding:")
    if lengths + codings > 1:
        raise Unreadable("the answer states its length twice")
    if codings:
        if header(head, b"transfer-encoding") != b"chunked" or not head.startswith(b"http/1.1"):
            raise Unreadable("the answer's transfer-encoding is not known")
        return CHUNKED
    if not lengths:
        return None
    length = header(head, b"content-length")
    if length is None or not length.isdigit() or len(length) > 18:
        raise Unreadable("the answer's content-length is not a number")
    return int(length)


def _filled(data: bytes, size: int) -> Generator[None, bytes, bytes]:
    """Read until there are at least ``size`` bytes."""
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
    """Read chunks (RFC 9112, 7.1). Return the content and the bytes after it."""
    parts: list[bytes] = []
    have = trailer = 0
    while True:
        line, data = yield from _until(b"\r\n", data, _CHUNKS)
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(HEX) or len(digits) > 16:
            raise Unreadable(_CHUNKS)
        if (size := int(digits, 16)) == 0:
            break
        have += size
        _check(have, limit)
        data = yield from _filled(data, size + 2)
        if data[size : size + 2] != b"\r\n":
            raise Unreadable("the size of a chunk of the answer is wrong")
        parts.append(data[:size])
        data = data[size + 2 :]
    while line:  # an empty line ends the trailer
        line, data = yield from _until(b"\r\n", data, _CHUNKS)
        trailer += len(line)
        if trailer > HEAD_LIMIT:
            raise Unreadable("the answer's trailer has no end")
    return b"".join(parts), data


def _until(end: bytes, data: bytes, why: str) -> Generator[None, bytes, tuple[bytes, bytes]]:
    """Return what comes before ``end``, and what has come after it. ``why`` is the error if it is too far away."""
    while (at := data.find(end)) < 0:
        if len(data) > HEAD_LIMIT:
            raise Unreadable(why)
        data += _some((yield))
    return data[:at], data[at + len(end) :]


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the connection was closed before the answer was complete")
    return data


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise Unreadable(f"the answer has {size} bytes or more, and the limit is {limit}", too_large=True)
