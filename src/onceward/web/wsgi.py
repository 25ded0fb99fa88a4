"""The Idempotency-Key header for WSGI applications (PEP 3333): Flask, Django, Pyramid, Bottle and all others."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from http import HTTPStatus
from io import BytesIO
from itertools import chain
from types import TracebackType
from typing import Protocol, TypeAlias, Unpack, cast

from onceward.http.answer import Answer, AnswerGate, with_length
from onceward.http.guarded import Guarded
from onceward.http.held import HeldRequest, claim
from onceward.http.request import BadRequest, Request, with_slash
from onceward.http.route import KeyedRequest, PendingRequest, WebOptions
from onceward.http.rules import Rules
from onceward.once import Once
from onceward.web.sending import Sending

Environ: TypeAlias = dict[str, object]
Headers: TypeAlias = list[tuple[str, str]]
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
Write: TypeAlias = Callable[[bytes], object]


class StartResponse(Protocol):
    """What a server gives to its application."""

    def __call__(self, status: str, headers: Headers, exc_info: ExcInfo | None = None, /) -> Write:
        """Begin a response."""


Application: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


class WsgiIdempotency:
    """Middleware that makes an application answer once for each idempotency key.

    In Flask: ``app.wsgi_app = WsgiIdempotency(app.wsgi_app, once, Rules(...), wait=5)``. Elsewhere wrap the application that the
    server calls. Put authentication (for ``scope=``) around it.

    In the application, ``onceward.current()`` returns the claim. A handler can complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        app: a WSGI application.
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` covers all POST and PATCH.
        **options: see :class:`onceward.web.WebOptions`; ``name`` is required unless ``once`` has one.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        app: Application,
        once: Once,
        rules: Rules | None = None,
        **options: Unpack[WebOptions],
    ) -> None:
        self._app = app
        self._guarded = Guarded(once, rules, options, "WsgiIdempotency(app, {})")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request that the rules cover; any other passes unchanged."""
        if str(environ["REQUEST_METHOD"]).upper() not in self._guarded.methods:
            return self._app(environ, start_response)
        stage = ask(self._guarded.rules, environ)
        if stage is None:
            return self._app(environ, start_response)
        held = stage if isinstance(stage, Answer) else claim(self._guarded, stage)
        if isinstance(held, Answer):
            _begin(held, start_response)
            return [held.body]
        return self._handle(held, environ, start_response)

    def _handle(self, held: HeldRequest, environ: Environ, start_response: StartResponse) -> Sending:
        head = _Head(self._guarded.rules.max_response)
        body = held.call(lambda: self._app(environ, head.start))
        close: Callable[[], object] | None = getattr(body, "close", None)
        try:
            gate, parts = held.call(lambda: head.open(body))
        except BaseException:
            if close is not None:
                close()
            raise
        sending = Sending(held, gate, parts, close)
        sending.has_begun = False
        held.judge.began = _began(environ, gate.status)
        try:
            if not gate.is_events:
                # Make an answer of one part to its end. If its record fails, another answer is still possible.
                sending.advance(None if isinstance(body, list | tuple) else 2)
            if sending.instead is None:
                start_response(head.line, gate.headers)
            else:
                _begin(sending.instead, start_response)
        except BaseException:
            sending.close()
            raise
        sending.has_begun = True
        return sending


def _began(environ: Environ, status: int) -> bool | None:
    """Tell, when the answer begins, whether the endpoint began: False if Flask has found none, else None for unknown."""
    routing_failed = getattr(environ.get("werkzeug.request"), "routing_exception", None) is not None
    return False if routing_failed and status >= 300 else None


class _Head:
    """The head of the application's answer. The server gets it when a part of the answer can be sent."""

    line = ""
    _gate: AnswerGate | None = None

    def __init__(self, most: int) -> None:
        self._most = most
        self._written: list[bytes] = []  # what the application wrote and nobody has read

    def start(self, status: str, headers: Headers, exc_info: ExcInfo | None = None, /) -> Write:
        """Take in the head. The application calls this as ``start_response``."""
        if exc_info is not None:
            try:
                if self._gate is not None and self._gate.size and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # else the traceback keeps itself alive
        elif self._gate is not None:
            raise AssertionError("start_response was called again, and without exc_info")
        self.line, self._gate = status, AnswerGate(int(status[:3]), headers, self._most)
        self._written.clear()
        return self._written.append

    def open(self, body: Iterable[bytes]) -> tuple[AnswerGate, Iterator[bytes]]:
        """Return the answer and its parts, after the head and the first part that is not empty."""
        parts = self._parts(body)
        first = next((part for part in parts if part), b"")
        if self._gate is None:
            raise AssertionError("the application has not called start_response")
        return self._gate, chain((first,), parts)

    def _parts(self, body: Iterable[bytes]) -> Iterator[bytes]:
        for part in chain(body, (b"",)):
            yield b"".join(self._written)
            self._written.clear()
            yield part


def _begin(answer: Answer, start_response: StartResponse) -> None:
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:  # the application's own status
        phrase = "Unknown"
    start_response(f"{answer.status} {phrase}", with_length(answer))


# --- an environ as the rules see it, and its body. Django's ``request.META`` is an environ, too ---
class Stream(Protocol):
    """Something with the bytes of a body, such as ``wsgi.input``."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


def ask(rules: Rules, environ: MutableMapping[str, object]) -> KeyedRequest | Answer | None:
    """Return what the rules decide on a request; None if it passes unchanged. Its body is read and put back."""
    pending = rules.begin(request_of(environ))
    if not isinstance(pending, PendingRequest):
        return pending
    try:
        body = body_of(environ, rules.max_request)
    except BadRequest as error:
        return rules.unreadable(str(error))
    environ["wsgi.input"] = BytesIO(body)
    return rules.ask(pending, body)


def request_of(environ: Mapping[str, object], native: Mapping[str, object] | None = None) -> Request:
    """Return the request of an environ. Its path is the one that the application routes by, without ``SCRIPT_NAME``.

    The identity is ``REMOTE_USER``, which a server sets if it has authenticated the caller (RFC 3875, section 4.1.11).
    ``native`` is what a ``scope`` is given instead of the environ.
    """
    return Request(
        str(environ["REQUEST_METHOD"]).upper(),  # as Django and Werkzeug read it
        with_slash(_text(environ, "PATH_INFO")),
        str(environ.get("QUERY_STRING", "")),
        _lines(environ),
        cast("str | None", environ.get("REMOTE_USER") or None),
        environ if native is None else native,
        _text(environ, "SCRIPT_NAME").rstrip("/"),
    )


def body_of(environ: Mapping[str, object], most: int) -> bytes:
    """Return the body of a request, or its first ``most`` + 1 bytes if it has more than ``most``.

    Raises:
        BadRequest: it ends before its Content-Length, or its end is unknown.
    """
    length = str(environ.get("CONTENT_LENGTH") or "")
    if length and not (length.isascii() and length.isdecimal()):
        raise BadRequest("its Content-Length is not a number")
    stream = cast("Stream", environ["wsgi.input"])
    if length and "chunked" not in str(environ.get("HTTP_TRANSFER_ENCODING", "")).lower():
        size = min(int(length), most + 1)
        body = read(stream, size)
        if len(body) < size:
            raise BadRequest(f"it has {len(body)} bytes, and its Content-Length is {length}")
        return body
    if environ.get("wsgi.input_terminated"):  # the server decodes chunked bodies and ends them
        return read(stream, most + 1)
    if length or environ.get("HTTP_TRANSFER_ENCODING"):
        raise BadRequest("this server does not decode chunked bodies; send it with a Content-Length")
    return b""


def read(stream: Stream, size: int) -> bytes:
    """Return the next ``size`` bytes of a stream, or fewer at its end."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _lines(environ: Mapping[str, object]) -> list[tuple[str, str]]:
    lines = [
        (name[5:].replace("_", "-").lower(), str(value))
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}
    ]
    # an empty one counts as absent
    present = [name for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)]
    return lines + [(name.replace("_", "-").lower(), str(environ[name])) for name in present]


def _text(environ: Mapping[str, object], name: str) -> str:
    """Return a path. An environ holds its bytes as Latin-1 text."""
    return str(environ.get(name, "")).encode("latin-1", "replace").decode("utf-8", "surrogateescape")
