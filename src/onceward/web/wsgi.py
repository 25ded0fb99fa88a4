"""The Idempotency-Key header for WSGI applications (PEP 3333): Flask, Django, Pyramid, Bottle and all others."""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, Unpack

from onceward.core.policy import Options
from onceward.http.answer import Answer
from onceward.http.coverage import known_routes
from onceward.http.gate import AnswerGate
from onceward.http.guarded import Guarded
from onceward.http.rules import Rules
from onceward.http.verdict import PassedRequest
from onceward.web.environ import ask, request_of
from onceward.web.sending import Held, Sending, claim

if TYPE_CHECKING:
    from onceward.once import Once

Environ: TypeAlias = dict[str, object]
Headers: TypeAlias = list[tuple[str, str]]
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
Write: TypeAlias = Callable[[bytes], object]
# RFC 9110, section 8.6: no Content-Length in an answer with 204; one with 304 would have that of another answer.
_WITHOUT_LENGTH: Final = frozenset({204, 304})


class StartResponse(Protocol):
    """What a server hands to its application."""

    def __call__(self, status: str, headers: Headers, exc_info: ExcInfo | None = None, /) -> Write:
        """Begin a response."""


Application: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


class WsgiIdempotency:
    """Middleware that makes an application answer once for each idempotency key.

    In Flask: ``app.wsgi_app = WsgiIdempotency(app.wsgi_app, once, Rules(...), wait=5)``. Elsewhere wrap the application that the
    server is told to call. Put what says who the caller is (``scope=``) around it.

    ``onceward.current()`` returns the claim in the application. A handler may complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        app: a WSGI application.
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` are all POST and PATCH.
        name: the namespace of the keys, another one for each service that shares the ledger. It is required, unless ``once`` has one.
        wait: seconds for which a request waits for the answer to the one before it; without it, it gets a 409 at once.
        **options: see :class:`onceward.Policy`; ``cache`` means nothing here.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        app: Application,
        once: "Once",
        rules: Rules | None = None,
        *,
        name: str | None = None,
        wait: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._app = app
        self._guarded = Guarded(once, rules, name, wait, options, "WsgiIdempotency(app, {})")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request by the rules; what is none of theirs, as without this."""
        if str(environ["REQUEST_METHOD"]).upper() not in self._guarded.methods:
            return self._app(environ, start_response)
        coverage = self._guarded.coverage
        if not coverage.looked:
            coverage.look(lambda: known_routes(self._app))
        asked = ask(self._guarded.rules, environ)
        if asked is None:
            if not coverage.told:
                self._tell(environ)
            return self._app(environ, start_response)
        if isinstance(asked, PassedRequest):
            with asked:
                return self._app(environ, _watched(asked, start_response))
        held = asked if isinstance(asked, Answer) else claim(self._guarded, asked)
        if isinstance(held, Answer):
            _begin(held, start_response)
            return [held.body]
        return self._handle(held, environ, _Head(start_response, environ, self._guarded.rules.max_response))

    def _tell(self, environ: Environ) -> None:
        """Tell of a request that no route covers."""
        request = request_of(environ)
        if not self._guarded.rules.covers(request.method, request.path):
            self._guarded.coverage.uncovered(request.method, request.path)

    def _handle(self, held: Held, environ: Environ, head: "_Head") -> Sending:
        body = held.call(lambda: self._app(environ, head.start))
        close: Callable[[], object] | None = getattr(body, "close", None)
        try:
            gate, parts = held.call(lambda: head.opened(body))
        except BaseException:
            if close is not None:
                close()
            raise
        sending = Sending(held, gate, parts, close)
        sending.begun = head.begun
        held.began = head.endpoint_began
        try:
            if not gate.is_events:
                # An answer of one part is made to its end, so that something else can be answered if it is not recorded.
                sending.advance(None if isinstance(body, list | tuple) else 2)
            if sending.instead is None:
                head.begin()
            else:
                head.begin_instead(sending.instead)
        except BaseException:
            sending.close()
            raise
        sending.begun = True
        return sending


def _began(environ: Environ, status: int) -> bool | None:
    """Tell, as the answer begins, whether the endpoint began: not where Flask has found none. Otherwise nobody can tell."""
    routing_failed = getattr(environ.get("werkzeug.request"), "routing_exception", None) is not None
    return False if routing_failed and status >= 300 else None


class _Head:
    """The head of the application's answer, which goes to the server when something of the answer can be sent."""

    endpoint_began: bool | None = None  # None when nobody can tell

    def __init__(self, start_response: StartResponse, environ: Environ, most: int) -> None:
        self.begun = False
        self._environ = environ
        self._start_response = start_response
        self._most = most
        self._line = ""
        self._gate: AnswerGate | None = None
        self._write: Write | None = None  # the server's; None when nobody takes anything any more

    def start(self, status: str, headers: Headers, exc_info: ExcInfo | None = None, /) -> Write:
        """Take in the head: what the application calls as ``start_response``."""
        if exc_info is not None:
            try:
                if self._gate is not None and self._gate.size and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # or the traceback would keep itself alive
        elif self._gate is not None:
            raise AssertionError("start_response was called again, and without exc_info")
        self._line = status
        self.endpoint_began = _began(self._environ, int(status[:3]))
        self._gate = AnswerGate(int(status[:3]), headers, self._most)
        return self.write

    def opened(self, body: Iterable[bytes]) -> tuple[AnswerGate, Iterator[bytes]]:
        """Return the answer and its parts, when the first that is not empty is there, and so is the head."""
        parts = iter(body)
        first = next((part for part in parts if part), b"")
        if self._gate is None:
            raise AssertionError("the application has not called start_response")
        return self._gate, chain((first,), parts)

    def write(self, data: bytes) -> None:
        """Send a part of the body before the application returns; that its client has left is not the application's matter."""
        assert self._gate is not None  # it is start() that hands this out
        part = self._gate.take(data)
        if not part:
            return
        self.begin()
        if self._write is not None:
            try:
                self._write(part)
            except Exception:  # every server has its own for that; it will meet it again
                self._write = None

    def begin(self) -> None:
        """Hand the head to the server."""
        if not self.begun:
            assert self._gate is not None  # there is an answer
            self.begun = True
            self._write = self._start_response(self._line, self._gate.headers)

    def begin_instead(self, answer: Answer) -> None:
        """Hand the head of another answer to the server."""
        self.begun = True
        _begin(answer, self._start_response)


def _watched(passed: PassedRequest, start_response: StartResponse) -> StartResponse:
    """Return a ``start_response`` that takes in the status of the answer to a request that has passed."""

    def watching(status: str, headers: Headers, *more: ExcInfo | None) -> Write:
        passed.answered(int(status[:3]))
        return start_response(status, headers, *more)

    return watching


def _begin(answer: Answer, start_response: StartResponse) -> None:
    headers = list(answer.headers)
    if answer.status not in _WITHOUT_LENGTH:
        headers.append(("Content-Length", str(len(answer.body))))
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:  # one of the application's own
        phrase = "Unknown"
    start_response(f"{answer.status} {phrase}", headers)
