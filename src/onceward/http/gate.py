"""The gate of an answer: which parts can go out before it is recorded, and which are kept for the record. No I/O.

Parts go out as they are made. The end waits for the record, so a client with a whole answer gets the same one for a retry.
The end is the part that completes the Content-Length, because the client then has everything; else the end of the body.
"""

from collections.abc import Iterable
from typing import Final

from onceward.http.answer import Answer

_EVENTS: Final = "text/event-stream"


class AnswerGate:
    """The gate of one answer. ``most`` is how many bytes of the body are kept."""

    __slots__ = ("_kept", "_most", "headers", "held", "is_events", "length", "size", "status")

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], most: int) -> None:
        self.status = status
        self.headers = list(headers)
        self.held = b""  # the part that completes the Content-Length; it goes out after the record is written
        self.is_events = False  # whether it is a stream of events, which must not wait
        self.size = 0  # bytes of the body so far
        self._most = most
        self._kept: list[bytes] = []
        self.length: int | None = None  # bytes according to its Content-Length
        for name, value in self.headers:
            lower = name.lower()
            if lower == "content-length" and value.strip().isdecimal():
                self.length = int(value)
            elif lower == "content-type":
                self.is_events = value.strip().lower().startswith(_EVENTS)

    @property
    def ends_with_client(self) -> bool:
        """Whether the rest can be skipped if the client has left: the body, which can be endless, will not be replayed."""
        return self.is_events or self.size > self._most

    @property
    def answer(self) -> Answer:
        """The answer so far. A body over the limit is cut to one byte more than the limit."""
        # This takes half the time of Answer(...).
        return tuple.__new__(Answer, (self.status, self.headers, b"".join(self._kept)))

    def take(self, part: bytes) -> bytes:
        """Take in a part of the body, and return what can go out of it now."""
        if self.length is not None:
            part = part[: max(0, self.length - self.size)]  # servers send nothing beyond it
        if (room := self._most + 1 - self.size) > 0:
            self._kept.append(bytes(part[:room]))
        self.size += len(part)
        if part and self.size == self.length:
            self.held = part
            return b""
        return part
