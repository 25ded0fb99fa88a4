"""What each request passes before a page sees it: the Host, the origin of a form, the visitor, headers of the answer; and signing in."""

import asyncio
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceward.dashboard.access import FORWARDED, SESSION
from onceward.dashboard.asking import base_of, board_of, check_form, form_of, page, redirect, trouble

COOKIE: Final = "onceward-session"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would hide the origin of a form from us, too
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OPEN: Final = ("/static/", "/sign-in")  # paths that need no visitor


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
    visitor = access.visitor(peer, identity, request.cookies.get(COOKIE))
    request.state.visitor = visitor
    path = _path(request)
    if visitor is not None or path.startswith(_OPEN):
        return None
    if not access.signs_in:
        text = f"The reverse proxy has not said who you are: the header {access.identity_header} is missing, or its sender is not trusted."
        return trouble(request, 403, "Who are you?", text)
    if request.method in {"GET", "HEAD"} and not path.startswith("/live"):
        target = quote(f"{path}?{request.url.query}" if request.url.query else path, safe="")
        return redirect(request, f"/sign-in?next={target}")
    text = "Your session has ended. Nothing was changed. Sign in, and try again."
    return trouble(request, 401, "Signed out", text)


def _path(request: Request) -> str:
    """Return the path within the dashboard, wherever it is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(base_of(request)) or "/"


def _is_same_origin(request: Request, host: str) -> bool:
    """Return whether a form comes from a page of ours. Browsers say so; other programs need the form's own token anyway."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    try:
        return origin is None or urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # no browser sends an origin that is none
        return False


def form(request: Request) -> Response:
    """Ask for the token."""
    return _form(request, request.query_params.get("next", "/"))


def _form(request: Request, following: str, wrong: str = "", status: int = 200) -> Response:
    board = board_of(request)
    if not board.access.signs_in:
        raise HTTPException(404)
    return page(request, "sign_in.html", {"next": following, "wrong": wrong}, status)


async def sign_in(request: Request) -> Response:
    """Begin a session if the token is right."""
    board, fields = board_of(request), await form_of(request)
    access, token = board.access, fields.get("token", "")
    client = access.client("" if request.client is None else request.client.host, request.headers.getlist(FORWARDED))
    following, name = fields.get("next", "/"), " ".join(fields.get("name", "").split())[:100]
    if board.wrong.is_over(client):
        return _form(request, following, "Too many wrong tokens. Wait a minute.", 429)
    if not access.is_token(token):
        board.wrong.add(client, token)
        await asyncio.sleep(0.5)  # guesses cost time
        return _form(request, following, "That is not the token.", 403)
    if not name:
        return _form(request, following, "Give your name: the audit says who did what.", 400)
    local = following.startswith("/") and not following.startswith(("//", "/\\"))
    answer = redirect(request, following if local else "/")
    # Behind a proxy that speaks TLS the request itself came by HTTP; its browser tells where the form was.
    secure = "https" in {request.url.scheme, urlsplit(request.headers.get("origin", "")).scheme}
    path = f"{base_of(request)}/"
    answer.set_cookie(
        COOKIE, access.session(name), int(SESSION), path=path, secure=secure, httponly=True, samesite="strict"
    )
    return answer


async def sign_out(request: Request) -> Response:
    """End the session of this browser."""
    check_form(request, await form_of(request))
    answer = redirect(request, "/sign-in")
    answer.delete_cookie(COOKIE, path=f"{base_of(request)}/", httponly=True, samesite="strict")
    return answer
