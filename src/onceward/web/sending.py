"""An answer on its way to its client while its key is claimed; for hosts that call, such as WSGI servers.

It goes out as it is made, but for its end, which waits until the answer is recorded: who has all of an answer can send the
request again and get the same. When the client leaves before that, the rest is made all the same, and recorded.
"""

from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import Final, Self, TypeVar

from onceward.claim.held import HeldClaim
from onceward.claim.running import CURRENT
from onceward.http.answer import CUT_SHORT, PENDING, Answer, Recorded
from onceward.http.exchange import Exchange, Unrecorded
from onceward.http.guarded import Guarded
from onceward.http.recording import Recording
from onceward.http.trouble import tell
from onceward.http.verdict import KeyedRequest
from onceward.results.outcomes import GivenBack

T = TypeVar("T")
_EVENTS: Final = "text/event-stream"


class Passage:
    """What of an answer may go out before it is recorded, and what of it is kept to be recorded. No I/O.

    Args:
        status: the answer's.
        headers: the answer's.
        most: bytes of a body that are kept.

    Attributes:
        is_events: whether it is a stream of events, which nobody wants to wait for.
        held: what may go out after the record is written: the part that completes the Content-Length, with which a client
            has everything. Without a Content-Length the end is not a part, but that there are no more.
    """

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], most: int) -> None:
        self.status = status
        self.headers = list(headers)
        self.held = b""
        self.is_events = False
        self._most = most
        self._kept: list[bytes] = []
        self._size = 0
        self._length: int | None = None
        for name, value in self.headers:
            if name.lower() == "content-length" and value.strip().isdecimal():
                self._length = int(value)
            elif name.lower() == "content-type":
                self.is_events = value.strip().lower().startswith(_EVENTS)

    @property
    def ends_with_client(self) -> bool:
        """Whether there is no reason to make the rest of it when the client has left: its body is not going to be replayed.

        Only such answers may be without end.
        """
        return self.is_events or self._size > self._most

    @property
    def has_body(self) -> bool:
        """Whether a part of the body was taken in."""
        return self._size > 0

    @property
    def answer(self) -> Answer:
        """The answer so far, with one byte more than is kept when there is more."""
        return Answer(self.status, self.headers, b"".join(self._kept))

    def take(self, part: bytes) -> bytes:
        """Take in a part of the body, and return what may go out of it now."""
        if self._length is not None:
            part = part[: max(0, self._length - self._size)]  # no server sends what is beyond it
        if (room := self._most + 1 - self._size) > 0:
            self._kept.append(bytes(part[:room]))
        self._size += len(part)
        if part and self._size == self._length:
            self.held = part
            return b""
        return part


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
        CURRENT.set(self._claim)
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
        finally:
            CURRENT.set(self._claim.outer)

    def end(self, answer: Answer) -> Answer | None:
        """Record the handler's answer, or give the key back when it is none to be recorded.

        Returns:
            What the client gets instead of it; None for the answer itself.
        """
        return self._end(lambda: self._exchange.answered(answer, self.began))

    def cut(self, answer: Answer) -> None:
        """Record that the handler has answered, and was not asked for all of it."""
        self._end(lambda: self._exchange.headed(answer.status, answer.headers, CUT_SHORT, self.began))

    def _failed(self, error: Exception) -> None:
        try:
            self._settle(self._exchange.raised(error, self.began))
        except Exception as trouble:  # the handler's own exception goes on
            tell(self._claim.record.key, trouble)

    def _end(self, outcome: Callable[[], Recorded]) -> Answer | None:
        try:
            record: Recorded | Exception = outcome()
        except (Unrecorded, GivenBack) as error:
            record = error
        instead: Answer | None = None
        try:
            self._settle(record)
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
        passage: its answer.
        parts: the answer's body, to be iterated under the claim.
        close: called when this is closed, last of all; for example the ``close`` of the application's own iterable.

    Attributes:
        begun: whether the head of the answer is out, or on its way, so that nothing else can be answered.
        instead: what the client gets instead of the answer, when that was made to its end; None for the answer itself.
    """

    def __init__(
        self, held: Held, passage: Passage, parts: Iterator[bytes], close: Callable[[], object] | None = None
    ) -> None:
        self.begun = True
        self.instead: Answer | None = None
        self._held = held
        self._passage = passage
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
            while not self._held.is_over and not self._passage.ends_with_client:
                self._ready.clear()
                self._pull()
            if not self._held.is_over:
                self._held.cut(self._passage.answer)
        finally:
            close, self._close = self._close, None
            if close is not None:
                close()

    def _pull(self) -> None:
        if self._held.call(self._take):
            return
        self.instead = self._held.end(self._passage.answer)
        if self._held.pending and not self.begun:
            self._passage.headers.append(PENDING)
        if self.instead is None:
            if self._passage.held:
                self._ready.append(self._passage.held)
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
        if ready := self._passage.take(part):
            self._ready.append(ready)
        return True
