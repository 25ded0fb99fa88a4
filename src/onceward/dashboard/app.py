"""Puts the dashboard together: an ASGI application to serve or to mount."""

from collections.abc import Iterable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from onceward.dashboard import pages
from onceward.dashboard.access import Access
from onceward.dashboard.asking import Board, trouble
from onceward.dashboard.rendering import FOLDER
from onceward.dashboard.shield import Shield
from onceward.errors import OncewardError, StoreError
from onceward.once import Once, check_once
from onceward.stores.contract import NotFound

_AWAY: Final = "The ledger cannot be reached. This page tries again every five seconds, and comes back by itself."
_UNSURE: Final = "The ledger cannot be reached, or did not answer in time. What you asked for may have been done: look at the record first."


def dashboard(
    once: Once,
    *,
    allow_actions: bool = False,
    token: str | None = None,
    identity_header: str | None = None,
    trusted_proxies: Iterable[str] = (),
    hosts: Iterable[str] = (),
    hide_results: bool = False,
) -> Starlette:
    """Return an application that shows a ledger, to serve or to mount.

    Mount it as in ``app.mount("/onceward", dashboard(once))``. By default, everybody who reaches this machine by a name of its own can read,
    and nobody can change anything.

    Args:
        once: the Once whose ledger it shows.
        allow_actions: whether visitors can clear, park, unpark, retry and send again. It needs a token or an identity header.
        token: the password that visitors sign in with, at least 16 characters. With it, only those who sign in can read.
        identity_header: the header in which your reverse proxy names the visitor, such as ``X-Forwarded-User``.
        trusted_proxies: the addresses of that proxy. The header counts from no others.
        hosts: the names under which browsers reach the dashboard, without a port. Those of this machine are always known.
        hide_results: whether results and messages stay hidden.

    Raises:
        TypeError: ``once`` is not a Once.
        ValueError: a setting is missing, or is not safe.
    """
    check_once(once, "dashboard({})")
    access = Access(
        allow_actions=allow_actions,
        token=token,
        identity_header=identity_header,
        trusted_proxies=trusted_proxies,
        hosts=hosts,
    )
    app = Starlette(
        routes=[
            Route("/", pages.overview),
            Route("/records", pages.records),
            Route("/search", pages.search),
            Route("/audit", pages.audit),
            Route("/record", pages.record),
            Route("/record.json", pages.as_json),
            Route("/act", pages.preview, methods=["GET"]),
            Route("/act", pages.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        ],
        middleware=[Middleware(Shield)],
        exception_handlers={
            StoreError: _away,
            OncewardError: _refuse,
            ValueError: _refuse,
            HTTPException: _not_found,
        },
    )
    app.state.board = Board(once.ledger, access, hide_results)
    return app


def _away(request: Request, error: Exception) -> Response:
    reads = request.method in {"GET", "HEAD"}
    assert isinstance(error, StoreError)
    if reads and not error.transient:  # such as a right that is missing, or a key with a NUL
        return trouble(request, 502, "The ledger refuses this", str(error))
    text = f"{_AWAY if reads else _UNSURE} It said: {error}"
    return trouble(request, 503, "The ledger is away", text, again=reads)


def _refuse(request: Request, error: Exception) -> Response:
    missing = isinstance(error, NotFound)
    title = "There is no such key" if missing else "That does not work"
    return trouble(request, 404 if missing else 400, title, str(error))


def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = "There is no such page" if error.status_code == 404 else error.detail
    return trouble(request, error.status_code, title, "Use the links above to find your way.")
