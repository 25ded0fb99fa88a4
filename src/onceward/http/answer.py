r"""Answers: what the first request gets, what is recorded of it, and what a later request gets.

The ledger holds an answer as readable JSON. The body is text if it is UTF-8, else base64::

    {"status": 201, "headers": [["content-type", "application/json"]], "body": "{\"id\": 7}"}
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch  # RFC 9110, section 5.6.2
# RFC 9110, section 5.5
_VALUE: Final = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?").fullmatch
REPLAYED: Final = "Idempotent-Replayed"
PENDING: Final = ("Idempotency-Recorded", "pending")  # on an answer that goes out before it is recorded
CUT_SHORT: Final = "it was not sent to its end"

# Headers about one connection: RFC 9110, section 7.6.1, and the others of RFC 2616, section 13.5.1.
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# A cookie is for the first caller at that moment. The server dates each replay (RFC 9110, section 6.6.1). The host counts the length.
_OF_THE_FIRST_ONLY: Final = frozenset(
    {"set-cookie", "set-cookie2", "date", "content-length", REPLAYED.lower(), PENDING[0].lower()}
)
# RFC 9110, section 8.6: an answer with 204 has no Content-Length; with 304 it would be that of another answer.
_WITHOUT_LENGTH: Final = frozenset({204, 304})
_LEFT_OUT: Final = HOP_BY_HOP | _OF_THE_FIRST_ONLY


class Answer(NamedTuple):
    """A response.

    Attributes:
        status: its code, such as 201.
        headers: one pair of name and value for each header line, in upper or lower case. Replays and the rules' own
            answers have no Content-Length: the host counts the body.
        body: all of it.
    """

    status: int
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""


class Recorded(msgspec.Struct, omit_defaults=True, frozen=True):
    """An answer as it stands in the ledger. ``missing`` says why there is no body to replay; None if there is one."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    base64: bytes = b""  # a body that is not UTF-8; msgspec writes bytes as base64
    missing: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether its handler has failed. Then none of its messages is sent."""
        return self.status >= 500


def recorded(answer: Answer) -> Recorded:
    """Return what is recorded of an answer."""
    headers = tuple(replayable(answer.headers))
    try:
        return Recorded(answer.status, headers, body=answer.body.decode())
    except UnicodeDecodeError:
        return Recorded(answer.status, headers, base64=answer.body)


def fault_of(answer: Answer, *, blanks: bool = False) -> str | None:
    """Return why a server would refuse an answer's status or headers, at each replay anew; None if it would not.

    Most bear ``blanks`` around a value.
    """
    status: object = answer.status
    if not isinstance(status, int) or not 200 <= status <= 999:
        return f"its status is {status!r}: give a number from 200 on"
    headers: Iterable[tuple[object, object]] = answer.headers
    for name, value in headers:
        text = value.strip(" \t") if blanks and isinstance(value, str) else value
        if not isinstance(name, str) or not isinstance(text, str) or not TOKEN(name) or not _VALUE(text):
            return (
                f"its header {name!r} cannot be sent: give a name of RFC 9110, section 5.1, and a value in Latin-1 without "
                "line breaks, other control characters, and spaces around it"
            )
    return None


def bodiless(status: int, headers: Iterable[tuple[str, str]], why: str) -> Recorded:
    """Return what is recorded of an answer whose body cannot be replayed. It still completes the key."""
    return Recorded(status, tuple(replayable(headers)), missing=why)


def replay(record: Recorded) -> Answer:
    """Return the answer to a later request, marked as a replay. The record must have a body."""
    return Answer(record.status, [*record.headers, (REPLAYED, "true")], record.base64 or record.body.encode())


def with_length(answer: Answer) -> list[tuple[str, str]]:
    """Return the headers of an answer, with its Content-Length."""
    if answer.status in _WITHOUT_LENGTH:
        return list(answer.headers)
    return [*answer.headers, ("Content-Length", str(len(answer.body)))]


def replayable(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers that a replay carries: all but cookies, the date, the length and those about one connection."""
    result: list[tuple[str, str]] = []
    options: set[str] = set()
    for name, value in headers:
        lower = name.lower()
        if lower not in _LEFT_OUT:
            result.append((name, value))
        elif lower == "connection":
            options.update(option.strip().lower() for option in value.split(","))
    return [(name, value) for name, value in result if name.lower() not in options] if options else result


_EVENTS: Final = "text/event-stream"


class AnswerGate:
    """The gate of one answer. ``most`` is how many bytes of the body are kept."""

    __slots__ = (
        "_most",
        "_parts",
        "ends_with_client",
        "has_proof",
        "headers",
        "held",
        "is_events",
        "length",
        "size",
        "status",
    )

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], most: int) -> None:
        self.status = status
        self.headers = list(headers)
        self.held = b""  # the part that completes the Content-Length; it goes out after the record is written
        self.is_events = False  # whether it is a stream of events, which must not wait
        self.size = 0  # bytes of the body so far
        self._most = most
        self._parts: list[bytes] = []
        self.length: int | None = None  # bytes according to its Content-Length
        for name, value in self.headers:
            lower = name.lower()
            if lower == "content-length" and value.strip().isdecimal():
                self.length = int(value)
            elif lower == "content-type":
                self.is_events = value.strip().lower().startswith(_EVENTS)
        if status in _WITHOUT_LENGTH:
            self.length = None
        # Whether the rest can be skipped if the client has left: the body, which can be endless, will not be replayed.
        self.ends_with_client = self.is_events
        self.has_proof = (
            self.length is not None or status in _WITHOUT_LENGTH
        )  # whether the headers show where the body ends

    @property
    def cut(self) -> str | None:
        """Why an answer that the application has ended is not whole: it is shorter than its Content-Length. Else None."""
        return CUT_SHORT if self.length is not None and self.size < self.length else None

    @property
    def answer(self) -> Answer:
        """The answer so far. A body over the limit is cut to one byte more than the limit."""
        # This takes half the time of Answer(...).
        return tuple.__new__(Answer, (self.status, self.headers, b"".join(self._parts)))

    def take(self, part: bytes) -> bytes:
        """Take in a part of the body, and return what can go out of it now."""
        if self.length is not None:
            part = part[: max(0, self.length - self.size)]  # servers send nothing beyond it
        if (room := self._most + 1 - self.size) > 0:
            self._parts.append(bytes(part[:room]))
        self.size += len(part)
        if self.size > self._most:
            self.ends_with_client = True
        if part and self.size == self.length:
            self.held = part
            return b""
        return part


# --- content codings: a retry may be compressed anew ---
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's numbers of the formats
LARGEST: Final = 1 << 24  # bytes of a decoded body: 1 MiB of gzip can be 1 GiB


class TooLargeDecoded(ValueError):
    """A decoded body has more bytes than :data:`LARGEST`."""


def plain(body: bytes, codings: Sequence[str]) -> bytes:
    """Return the decoded body of a request. What cannot be decoded here, such as brotli, is returned as it is.

    Args:
        body: as it was sent.
        codings: the lines of Content-Encoding.

    Raises:
        TooLargeDecoded: it is too large.
    """
    coding = codings[0].strip().lower() if len(codings) == 1 else ""
    if not body or coding not in _WINDOWS:
        return body
    parts: list[bytes] = []
    rest, room = body, LARGEST
    while rest:  # gzip can have several members (RFC 1952, section 2.2)
        decoder = zlib.decompressobj(_WINDOWS[coding])
        try:
            parts.append(decoder.decompress(rest, room + 1))
        except zlib.error:
            return body
        room -= len(parts[-1])
        if room < 0:
            raise TooLargeDecoded
        if not decoder.eof:
            return body
        rest = decoder.unused_data
    return b"".join(parts)
