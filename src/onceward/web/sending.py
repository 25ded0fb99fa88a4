"""An answer on its way to its client while its key is claimed; for hosts that call, such as WSGI servers.

It goes out as it is made, but for its end, which waits until the answer is recorded: who has all of an answer can send the
request again and get the same. When the client leaves before that, the rest is made all the same, and recorded.
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

T = TypeVar("T")


def claim(guarded: Guarded, ask: KeyedRequest) -> "Held | Answer":
    """Claim the key of a request, or return what its client gets without its handler.

    Raises:
        Exception: one that is recorded as the outcome (``final``).
    """
    key, exchange = guarded.begin(ask)
    try:
        entry = guarded.guard.enter(key, ask.fingerprint)
        if isinstance(entry, HeldClaim):
            exchange.begun()
            return Held(guarded, exchange, entry)
        answer = exchange.repeated(guarded.recorded(key, entry.value))
    except Exception as error:
        answer = exchange.refused(error)
    assert answer is not None  # no handler has run
    return answer


class Held:
    """A request whose key is claimed, until its outcome is recorded.

    Attributes:
        began: whether the endpoint itself began; None when nobody can tell. The face sets it.
        is_over: whether the claim has ended, as far as its answer is concerned.
        pending: whether the answer goes out before its record, see :mod:`onceward.http.recording`.
        recorder: the thread that goes on with that.
        error: why the answer could not be recorded under this claim, when something else is to be answered.
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
        """What it was made of."""
        return self._guarded, self._exchange, self._claim

    def call(self, function: Callable[[], T]) -> T:
        """Call a part of the handler under the claim. What it raises gives the key back, or is recorded, and goes on."""
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
        """Record the handler's answer, or give the key back when it is none to be recorded.

        Returns:
            What the client gets instead of it; None for the answer itself.
        """
        return self._end(self._exchange.outcome(answer, self.began))

    def cut(self, answer: Answer) -> None:
        """Record that the handler has answered, and was not asked for all of it."""
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
        self.is_over = True  # last: after an interrupt the server closes the answer, and that ends here once more
        return instead

    def _settle(self, outcome: Recorded | Exception) -> None:
        recording = Recording(self._guarded.guard, self._claim, outcome, self._guarded.within)
        recording.settle()
        if recording.pending:
            self.pending = True
            self.recorder = recording.start()


class Sending:
    """A body for a server to iterate over and to close (PEP 3333).

    Args:
        held: the request.
        gate: its answer.
        parts: the answer's body, to be iterated under the claim.
        close: called when this is closed, last of all; for example the ``close`` of the application's own iterable.

    Attributes:
        begun: whether the head of the answer is out, or on its way, so that nothing else can be answered.
        instead: what the client gets instead of the answer, when that was made to its end; None for the answer itself.
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
        """Have the answer made, until so many parts of it can be sent, or to its end.

        Raises:
            Exception: the handler's; or why the answer must not come to its end, of which the client has a part.
        """
        while not self._held.is_over and (parts is None or len(self._ready) < parts):
            self._pull()

    def close(self) -> None:
        """Have what is left of the answer made and recorded, when the client has left before its end."""
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
        """Take in the next part; tells whether there was one. A part that is no bytes is a mistake of the handler's."""
        part = next(self._parts, None)
        if part is None:
            return False
        if ready := self._gate.take(part):
            self._ready.append(ready)
        return True
