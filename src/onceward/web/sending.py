"""Sends an answer while its key is claimed; for synchronous hosts, such as WSGI servers.

Parts go out as they are made. The end waits for the record, so a client with a whole answer gets the same one for a retry.
If the client leaves early, the rest is still made and recorded.
"""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Self, TypeVar

from onceward.claim.held import HeldClaim
from onceward.claim.running import Under
from onceward.http.answer import CUT_SHORT, PENDING, Answer, Recorded
from onceward.http.exchange import Exchange
from onceward.http.gate import AnswerGate
from onceward.http.guarded import Guarded
from onceward.http.recording import Recording
from onceward.http.trouble import tell
from onceward.http.verdict import KeyedRequest
from onceward.observe.events import Within

T = TypeVar("T")


def claim(guarded: Guarded, ask: KeyedRequest) -> "Held | Answer":
    """Claim the key of a request, or return the answer that its client gets without a run of the handler.

    Raises:
        Exception: one that is recorded as the outcome (``final``).
    """
    key, exchange = guarded.begin(ask)
    try:
        with Within(ask.route):
            entry = guarded.guard.enter(key, ask.fingerprint)
        if isinstance(entry, HeldClaim):
            return Held(guarded, exchange, entry)
        answer = exchange.repeated(guarded.recorded(key, entry.value))
    except Exception as error:
        answer = exchange.refused(error)
    assert answer is not None  # no handler has run
    return answer


class Held:
    """A request whose key is claimed, until its outcome is recorded.

    Attributes:
        began: whether the endpoint itself began; None if unknown. The face sets it.
        is_over: whether the handler's part of the claim has ended.
        pending: whether the answer goes out before its record, see :mod:`onceward.http.recording`.
        recorder: the thread that continues to record then.
        error: why the answer could not be recorded, if the client gets another one.
    """

    began: bool | None = None
    pending = False
    recorder: Thread | None = None

    def __init__(self, guarded: Guarded, exchange: Exchange, claim: HeldClaim) -> None:
        self.is_over = False
        self.error: Exception | None = None
        self._guarded = guarded
        self._exchange = exchange
        self._claim = claim

    @property
    def parts(self) -> tuple[Guarded, Exchange, HeldClaim]:
        """The arguments of the constructor."""
        return self._guarded, self._exchange, self._claim

    def call(self, function: Callable[[], T]) -> T:
        """Call a part of the handler under the claim. Its exception gives the key back or is recorded, and is raised."""
        with Under(self._claim):
            try:
                return function()
            except Exception as error:
                self.is_over = True
                self._failed(error)
                raise
            except BaseException:
                self.is_over = True
                self._guarded.guard.drop(self._claim)
                raise

    def end(self, answer: Answer) -> Answer | None:
        """Record the handler's answer, or give the key back if the rules do not record it.

        Returns:
            What the client gets instead of it; None for the answer itself.
        """
        return self._end(self._exchange.outcome(answer, self.began))

    def cut(self, answer: Answer) -> None:
        """Record that the handler has answered, but without its body, which is cut off."""
        self._end(self._exchange.outcome(answer, self.began, CUT_SHORT))

    def _failed(self, error: Exception) -> None:
        try:
            self._settle(self._exchange.raised(error, self.began))
        except Exception as trouble:  # the handler's own exception goes on
            tell(self._claim.record.key, trouble)

    def _end(self, outcome: Recorded | Exception) -> Answer | None:
        instead: Answer | None = None
        try:
            self._settle(outcome)
        except Exception as error:
            instead = self._exchange.refused(error)
            self.error = None if instead is None else error
        self.is_over = True  # last: after an interrupt the server's close() must settle again
        return instead

    def _settle(self, outcome: Recorded | Exception) -> None:
        recording = Recording(self._guarded.guard, self._claim, outcome, self._guarded.within)
        recording.settle()
        if recording.pending:
            self.pending = True
            self.recorder = recording.start()


class Sending:
    """A body that a server iterates over and closes (PEP 3333).

    Args:
        held: the request.
        gate: its answer.
        parts: the answer's body; it is iterated under the claim.
        close: called last when this is closed, such as the ``close`` of the application's own iterable.

    Attributes:
        begun: whether the head of the answer is out, or on its way, so that no other answer is possible.
        instead: what the client gets instead, after the answer was made to its end; None for the answer itself.
    """

    def __init__(
        self, held: Held, gate: AnswerGate, parts: Iterator[bytes], close: Callable[[], object] | None = None
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
                self._held.cut(self._gate.answer)
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
