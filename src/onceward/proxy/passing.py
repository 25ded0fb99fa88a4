"""One request on its way to the upstream, and its answer on its way back.

While the upstream may have had its effect and its outcome is not known, the scope says MAY_HAVE_RUN: then the key stays claimed to
the end of its lease. That is so from the first byte that is sent until the answer is whole, and after a gateway's answer.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import quote, unquote

import h11

from onceward.http.rules import Rules
from onceward.proxy.upstream import Lines, Link, answer_lines
from onceward.web.asgi_began import MAY_HAVE_RUN
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send

_WHOLE_URL: Final = re.compile(rb"https?://[a-z0-9.:_\[\]-]+(/[^?#]*)?", re.IGNORECASE).fullmatch
_FOREIGN: Final = re.compile(r"[\x00-\x1f\x7f]").search  # some readers end a path at a NUL or a line break
_SLASH: Final = re.compile(rb"%2f", re.IGNORECASE).sub


def ambiguity(scope: MutableMapping[str, Any], rules: Rules) -> str | None:
    """Return why servers can read the path of a request in two ways; None if they cannot: then the scope gets it as it is sent."""
    path = _path_of(scope)
    if path is None:
        return "has no path that all servers read alike"
    paths = _readings(path)
    if len({rules.route(scope["method"].upper(), one) for one in paths}) > 1:
        return "has a path that servers read in two ways, and the routes differ for them"
    scope["raw_path"], scope["path"] = path, paths[0]
    return None


def _path_of(scope: Mapping[str, Any]) -> bytes | None:
    """Return the encoded path of a request, or ``*``; None if two servers can see different ones in its target."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    if not path.startswith(b"/") and path != b"*":
        if (match := _WHOLE_URL(path)) is None:  # a whole URL (RFC 9112, section 3.2.2)
            return None
        path = match[1] or b"/"
    decoded = unquote(path.decode("utf-8", "replace"))
    # The application may resolve dot segments, and then see another path than the rules.
    parts = decoded.replace("\\", "/").split("/")
    if any(part.partition(";")[0] in {".", ".."} for part in parts):
        return None
    return None if b"\\" in path or b"#" in path or _FOREIGN(decoded) else path


def _readings(path: bytes) -> list[str]:
    r"""Return the paths that applications can see in an encoded one. The first is the plain decoding.

    Some keep ``%2F`` as a part of a name, some take ``\`` for a slash, and some drop parameters (``;``, RFC 3986, section 3.3).
    """
    plain = unquote(path.decode("utf-8", "replace"))
    if b"%" not in path and b";" not in path:
        return [plain]
    escaped = unquote(_SLASH(b"%252F", path).decode("utf-8", "replace"))
    seen = [plain, escaped, plain.replace("\\", "/")]
    return seen + ["/".join(part.partition(";")[0] for part in one.split("/")) for one in seen]


# A gateway in front of the application answers these after a request that the application may have carried out.
_UNSURE: Final = {502, 504, 520, 522, 524}  # the last three are Cloudflare's


class Passing:
    """Passes on one request and its answer. The upstream can be silent for ``silence`` seconds."""

    _status = 0  # the answer's; 0 before its head has come
    _is_unsure = False  # whether it leaves open what the request has done
    _client_left = False  # before the answer was whole
    _is_whole = False  # whether the answer was read to its end

    def __init__(self, link: Link, scope: Scope, receive: Receive, send: Send, silence: float | None) -> None:
        self._link, self._scope, self._receive, self._send, self._silence = link, scope, receive, send, silence
        self._limit = asyncio.timeout(None)  # of a wait for the upstream

    async def run(self, request: h11.Request, first: Message) -> None:
        """Pass on a request, the ``first`` part of whose body has come.

        Raises RemoteProtocolError if the upstream gives no whole answer, TimeoutError if it is silent, nothing if the client leaves.
        """
        self._scope[MAY_HAVE_RUN] = True
        sender = asyncio.ensure_future(self._send_request(request, first))
        try:
            async with self._limit:
                head = await self._link.head(request.method)
                self._allow(None)
                self._status, lines = head.status_code, answer_lines(head.status_code, list(head.headers))
                # An upstream that is still carrying out an earlier attempt answers 409, and asks for patience.
                self._is_unsure = self._status in _UNSURE or (self._status == 409 and b"retry-after" in dict(lines))
                await self._answer(lines)
        except (h11.RemoteProtocolError, OSError, asyncio.CancelledError) as error:
            has_left = self._client_left or (isinstance(error, OSError) and not isinstance(error, TimeoutError))
            if has_left or isinstance(error, asyncio.CancelledError):
                self._settle()  # the middleware lets this end: the rest is not replayed
            if not has_left:
                raise
        finally:
            sender.cancel()
            self._link.end()

    async def _answer(self, headers: Lines) -> None:
        await self._send({"type": "http.response.start", "status": self._status, "headers": headers})
        is_events = dict(headers).get(b"content-type", b"").lower().startswith(b"text/event-stream")
        while not self._is_whole:
            self._allow(None if is_events else self._silence)
            part = await self._link.part()
            self._allow(None)
            if part is None:
                if self._client_left:
                    raise ConnectionResetError("the client has left")
                self._is_whole = True
                self._settle()
            await self._send({"type": "http.response.body", "body": part or b"", "more_body": part is not None})

    async def _send_request(self, request: h11.Request, message: Message) -> None:
        """Send it. Then wait until the client leaves, and close the link: a cancellation could reach the answer's record."""
        events: list[h11.Event] = [request]
        with contextlib.suppress(OSError, h11.LocalProtocolError):  # the answer says more, if there is one
            while message["type"] != DISCONNECT:
                is_last = not message.get("more_body", False)
                events += [h11.Data(data=message.get("body", b"")), *([h11.EndOfMessage()] if is_last else [])]
                self._allow(self._silence, to_begin=True)
                await self._link.send(*events)
                if is_last:
                    break
                self._allow(None, to_begin=True)  # the client has limits of its own
                message, events = await self._receive(), []
        while message["type"] != DISCONNECT:
            message = await self._receive()
        if not self._is_whole:
            self._client_left = True
            self._link.close()

    def _allow(self, seconds: float | None, *, to_begin: bool = False) -> None:
        """Let the upstream be silent for ``seconds`` from now; None is for as long as it is not asked."""
        if not (to_begin and (self._status or self._limit.expired())):
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _settle(self) -> None:
        """Note that the outcome is known."""
        if self._status and not self._is_unsure:
            self._scope[MAY_HAVE_RUN] = False
