"""Sends an answer while its key is claimed; for synchronous hosts, such as WSGI servers.

Parts go out as they are made. The end waits for the record, so a client with a whole answer gets the same one for a retry.
If the client leaves early, the rest is still made and recorded.
"""

from collections.abc import Callable, Iterator
from typing import Self

from onceward.http.answer import CUT_SHORT, PENDING, Answer, AnswerGate
from onceward.http.held import HeldRequest


class Sending:
    """A body that a server iterates over and closes (PEP 3333).

    Args:
        held, gate: the request and its answer.
        parts: the answer's body; it is iterated under the claim.
        close: called last when this is closed, such as the ``close`` of the application's own iterable.

    Attributes:
        begun: whether the head of the answer is out, or on its way, so that no other answer is possible.
        instead: what the client gets instead, after the answer was made to its end; None for the answer itself.
    """

    def __init__(
        self, held: HeldRequest, gate: AnswerGate, parts: Iterator[bytes], close: Callable[[], object] | None = None
    ) -> None:
        self.begun = True
        self.instead: Answer | None = None
        self._held = held
        self._gate = gate
        self._parts = parts
        self._close = close
        self._ready: list[bytes] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        self.advance(1)
        if not self._ready:
            raise StopIteration
        return self._ready.pop(0)

    def advance(self, parts: int | None = None) -> None:
        """Make the answer until ``parts`` parts of it can be sent, or to its end.

        Raises:
            Exception: the handler's; or why the record failed, if the client already has a part of the answer.
        """
        while not self._held.is_over and (parts is None or len(self._ready) < parts):
            self._pull()

    def close(self) -> None:
        """Make and record the rest of the answer, if the client left before its end."""
        try:
            while not self._held.is_over and not self._gate.ends_with_client:
                self._ready.clear()
                self._pull()
            if not self._held.is_over:
                self._held.end(self._gate.answer, CUT_SHORT)
        finally:
            close, self._close = self._close, None
            if close is not None:
                close()

    def _pull(self) -> None:
        if self._held.call(self._take):
            return
        self.instead = self._held.end(self._gate.answer)
        if self._held.pending and not self.begun:
            self._gate.headers.append(PENDING)
        if self.instead is None:
            if self._gate.held:
                self._ready.append(self._gate.held)
        elif self.begun:
            assert self._held.error is not None
            raise self._held.error
        else:
            self._ready = [self.instead.body]

    def _take(self) -> bool:
        """Take in the next part, and tell whether there was one. A part that is not bytes is the handler's mistake."""
        part = next(self._parts, None)
        if part is None:
            return False
        if ready := self._gate.take(part):
            self._ready.append(ready)
        return True
