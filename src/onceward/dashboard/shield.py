"""What each request passes before a page sees it: the Host, the origin of a form, the visitor, and headers of the answer."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceward.dashboard.asking import base_of, board_of, trouble

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would hide the origin of a form from us, too
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OPEN: Final = "/static/"  # begins the paths that need no visitor


class Shield:
    """An ASGI middleware. It puts the visitor into the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        answer = _refusal(request) or self._app
        if isinstance(answer, Response) and answer.status_code == 401 and "authorization" in request.headers:
            await asyncio.sleep(0.5)  # guesses cost time
        await answer(scope, receive, guarded)


def _refusal(request: Request) -> Response | None:
    """Return the answer to a request that no page may see; None lets it through."""
    access, headers = board_of(request).access, request.headers
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not access.is_host(hosts[0]):
        name = hosts[0] if hosts else "(none)"
        text = f"This dashboard is not known as {name}. If that is its name, start it with --allow-host, or mount it with hosts=[...]."
        return trouble(request, 421, "Wrong host", text)
    if request.method not in {"GET", "HEAD"} and not _is_same_origin(request, hosts[0]):
        text = "Another site sent this form. Nothing was changed. Open the dashboard itself, and try again there."
        return trouble(request, 403, "Refused", text)
    values = headers.getlist(access.identity_header) if access.identity_header else []
    identity = values[0] if len(values) == 1 else None  # of two, the visitor may have sent one
    peer = request.client.host if request.client else None
    visitor = access.visitor(peer, identity, headers.get("authorization"))
    request.state.visitor = visitor
    path = _path(request)
    if visitor is not None or path.startswith(_OPEN):
        return None
    if not access.signs_in:
        text = f"The reverse proxy has not said who you are: the header {access.identity_header} is missing, or its sender is not trusted."
        return trouble(request, 403, "Who are you?", text)
    answer = trouble(
        request, 401, "Sign in", "Give your name, for the audit, and the token of this dashboard as the password."
    )
    answer.headers["WWW-Authenticate"] = 'Basic realm="onceward", charset="UTF-8"'
    return answer


def _path(request: Request) -> str:
    """Return the path within the dashboard, wherever it is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(base_of(request)) or "/"


def _is_same_origin(request: Request, host: str) -> bool:
    """Return whether a form comes from a page of ours, as each browser says."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    try:
        is_ours = origin is None or urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # no browser sends an origin that is none
        return False
    return is_ours and site in {None, "same-origin"} and (origin or site) is not None
