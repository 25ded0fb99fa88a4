"""ASGI's messages: requests as the rules see them, bodies, and whole answers."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from contextvars import Context
from types import CoroutineType
from typing import Any, Final

from onceward.http.answer import Answer, with_length
from onceward.http.request import Request, with_slash

# As in ASGI's own types: the "type" says what a scope or a message contains.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

DISCONNECT = "http.disconnect"


class AsgiRequest(Request):
    """The request of an HTTP scope. Header lines are decoded on demand, because few are needed."""

    identity = None

    def __init__(self, scope: Scope, method: str, path: str, root: str) -> None:
        self.method, self.path, self.root = method, path, root
        self.query = scope.get("query_string", b"").decode("latin-1")
        self.native = scope
        raw = scope["headers"]
        if type(raw) is not list:  # ASGI allows an iterable that can be read only once
            raw = scope["headers"] = list(raw)
        self._raw: list[tuple[bytes, bytes]] = raw
        # In lower case, as ASGI requires: Hypercorn can keep names as they were sent (h11_pass_raw_headers).
        fields = {name.lower(): value for name, value in raw}
        self._fields = fields if len(fields) == len(raw) else None  # None if a name has two lines

    @property
    def headers(self) -> list[tuple[str, str]]:  # type: ignore[override]  # nobody sets it
        """One pair for each header line, the names in lower case."""
        return lines_of(self._raw)

    def lines(self, name: str) -> list[str]:
        """As :meth:`Request.lines`."""
        raw = name.encode("latin-1")
        if self._fields is None:
            return [value.decode("latin-1") for held, value in self._raw if held.lower() == raw]
        value = self._fields.get(raw)
        return [] if value is None else [value.decode("latin-1")]


def place_of(scope: Scope) -> tuple[str, str]:
    """Return the path that the application routes by, and the root before it, which is empty if the path lacks it."""
    path: str = scope["path"]
    if not path.startswith("/"):
        path = with_slash(path)
    root: str = scope.get("root_path") or ""
    if root and (path + "/").startswith(root.rstrip("/") + "/"):
        root = root.rstrip("/")
        return path[len(root) :] or "/", root
    return path, ""  # servers differ on whether the path begins with the root


def lines_of(headers: Iterable[Iterable[bytes]]) -> list[tuple[str, str]]:
    """Return header lines as text, the names in lower case."""
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]


async def body_of(receive: Receive, most: int) -> bytes | None:
    """Return a request's body, or its beginning once that exceeds ``most`` bytes; None if its sender has left."""
    body: bytes | bytearray = b""
    while True:
        message = await receive()
        if message["type"] == DISCONNECT:
            return None
        part: bytes = message.get("body", b"")
        if not body:
            body = part
        elif isinstance(body, bytearray):
            body += part
        else:
            body = bytearray(body + part)  # not a list of parts: small parts would take more memory
        if len(body) > most or not message.get("more_body", False):
            return bytes(body)


def whole(body: bytes) -> Message:
    """Return the message of a request's whole body."""
    return {"type": "http.request", "body": body, "more_body": False}


def prepend(messages: Iterable[Message], receive: Receive) -> Receive:
    """Return a ``receive`` that first repeats ``messages``."""
    rest = iter(messages)

    async def receive_again() -> Message:
        message = next(rest, None)
        return await receive() if message is None else message

    return receive_again


async def live(receive: Receive, send: Send, close: Callable[[], None]) -> None:
    """Answer a server's lifespan, and ``close`` at its end."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    close()
    await send({"type": "lifespan.shutdown.complete"})


class DatedSend:
    """A ``send`` that dates answers which have no date (RFC 9110, section 6.6.1). ``began`` says whether one began."""

    began = False

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        if message["type"] == "http.response.start":
            self.began = True
            headers = message.get("headers", ())
            if not any(name.lower() == b"date" for name, _ in headers):
                from email.utils import formatdate  # only a proxy pays for it

                message = {**message, "headers": [*headers, (b"date", formatdate(usegmt=True).encode())]}
        await self._send(message)


def patient(receive: Receive, seconds: float | None) -> Receive:
    """Return a ``receive`` that takes a client which is silent in the middle of its body as gone."""
    more = True

    async def receive_soon() -> Message:
        nonlocal more
        try:
            async with asyncio.timeout(seconds if more else None):
                message = await receive()
        except TimeoutError:
            message = {"type": DISCONNECT}
        more = message["type"] != DISCONNECT and message.get("more_body", False)
        return message

    return receive_soon


async def reply(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in with_length(answer)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


class Within:
    """Awaits something in a context of its own."""

    def __init__(self, context: Context, what: Awaitable[object]) -> None:
        self._context, self._what = context, what

    async def _plain(self) -> object:
        return await self._what

    def __await__(self) -> Generator[Any, Any, Any]:
        # A server's own awaitable can give an iterator without send and throw (PEP 492).
        steps: Any = self._what if type(self._what) is CoroutineType else self._plain()
        step, given = steps.send, None
        while True:
            try:
                waits_for = self._context.run(step, given)
            except StopIteration as end:
                return end.value
            try:
                step, given = steps.send, (yield waits_for)
            except BaseException as error:
                step, given = steps.throw, error


# With these extensions an answer's body does not come as messages, or does not end with them. Without them, ASGI requires
# that applications send messages, which can be recorded.
_EXTENSIONS: Final = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


def hide_extensions(scope: Scope) -> None:
    """Take out of a scope the extensions with which an answer could not be recorded."""
    extensions = scope["extensions"]
    if any(name in extensions for name in _EXTENSIONS):
        scope["extensions"] = {name: what for name, what in extensions.items() if name not in _EXTENSIONS}
