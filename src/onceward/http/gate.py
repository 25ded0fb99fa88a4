"""The gate of an answer: what of it may go out before it is recorded, and what of it is kept to be recorded. No I/O.

An answer goes out as it is made, but for its end, which waits until the answer is recorded: who has all of an answer can send
the request again and get the same. The end is that there is no more; or before it the part that completes the
Content-Length, for with that a client has everything.
"""

from collections.abc import Iterable
from typing import Final

from onceward.http.answer import Answer

_EVENTS: Final = "text/event-stream"


class AnswerGate:
    """The gate of one answer.

    Args:
        status: the answer's.
        headers: the answer's, one pair for each header line.
        most: bytes of a body that are kept.

    Attributes:
        size: bytes of the body so far.
        length: bytes that its Content-Length tells of; None when there is none.
        held: what may go out after the record is written: the part that completes the Content-Length.
        is_events: whether it is a stream of events, which nobody wants to wait for.
    """

    __slots__ = ("_kept", "_most", "headers", "held", "is_events", "length", "size", "status")

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], most: int) -> None:
        self.status = status
        self.headers = list(headers)
        self.held = b""
        self.is_events = False
        self.size = 0
        self._most = most
        self._kept: list[bytes] = []
        self.length: int | None = None
        for name, value in self.headers:
            lower = name.lower()
            if lower == "content-length" and value.strip().isdecimal():
                self.length = int(value)
            elif lower == "content-type":
                self.is_events = value.strip().lower().startswith(_EVENTS)

    @property
    def ends_with_client(self) -> bool:
        """Whether there is no reason to make the rest of it when the client has left: its body is not going to be replayed.

        Only such answers may be without end.
        """
        return self.is_events or self.size > self._most

    @property
    def answer(self) -> Answer:
        """The answer so far, with one byte more than is kept when there is more."""
        # What Answer(...) does, in half the time.
        return tuple.__new__(Answer, (self.status, self.headers, b"".join(self._kept)))

    def take(self, part: bytes) -> bytes:
        """Take in a part of the body, and return what may go out of it now."""
        if self.length is not None:
            part = part[: max(0, self.length - self.size)]  # no server sends what is beyond it
        if (room := self._most + 1 - self.size) > 0:
            self._kept.append(bytes(part[:room]))
        self.size += len(part)
        if part and self.size == self.length:
            self.held = part
            return b""
        return part
