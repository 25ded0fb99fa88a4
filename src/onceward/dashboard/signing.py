"""Signing in with the token, and out."""

import asyncio
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onceward.dashboard.access import FORWARDED, SESSION
from onceward.dashboard.asking import board_of, check_form, form_of
from onceward.dashboard.shield import COOKIE


def form(request: Request) -> Response:
    """Ask for the token."""
    return _form(request, request.query_params.get("next", "/"))


def _form(request: Request, following: str, wrong: str = "", status: int = 200) -> Response:
    board = board_of(request)
    if not board.access.signs_in:
        raise HTTPException(404)
    return board.renderer.page(request, "sign_in.html", {"next": following, "wrong": wrong}, status)


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
    base = request.scope.get("root_path", "")
    local = following.startswith("/") and not following.startswith(("//", "/\\"))
    answer = RedirectResponse(f"{base}{following if local else '/'}", 303)
    # Behind a proxy that speaks TLS the request itself came by HTTP; its browser tells where the form was.
    secure = "https" in {request.url.scheme, urlsplit(request.headers.get("origin", "")).scheme}
    path = f"{base}/"
    answer.set_cookie(
        COOKIE, access.session(name), int(SESSION), path=path, secure=secure, httponly=True, samesite="strict"
    )
    return answer


async def sign_out(request: Request) -> Response:
    """End the session of this browser."""
    check_form(request, await form_of(request))
    base = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{base}/sign-in", 303)
    answer.delete_cookie(COOKIE, path=f"{base}/", httponly=True, samesite="strict")
    return answer
