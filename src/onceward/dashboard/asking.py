"""What the pages of one dashboard share, and what a request asks for: the fields of its form, and the filters of its address."""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from onceward.core.arguments import seconds
from onceward.core.views import Criteria
from onceward.dashboard.access import ANYBODY, Access, Visitor
from onceward.dashboard.needs import RecordQuery
from onceward.dashboard.rendering import TEMPLATES
from onceward.stores.ledger import Ledger

_LARGEST: Final = 64 * 1024  # bytes of a form
AGES: Final = ("1m", "15m", "1h", "1d", "7d")


class Board(NamedTuple):
    """The ledger and the settings."""

    ledger: Ledger
    access: Access
    hides_results: bool


def board_of(request: Request) -> Board:
    """Return the board of the dashboard that got a request."""
    return cast("Board", request.app.state.board)


def visitor_of(request: Request) -> Visitor:
    """Return who sent a request."""
    return getattr(request.state, "visitor", None) or ANYBODY


def base_of(request: Request) -> str:
    """Return the path under which the dashboard is mounted; "" at the root."""
    return cast("str", request.scope.get("root_path", ""))


def page(request: Request, name: str, context: Mapping[str, object], status: int = 200) -> Response:
    """Return the answer that a template makes with ``context``."""
    board, visitor = board_of(request), visitor_of(request)

    def link(path: str, **query: object) -> str:
        values = {key: value for key, value in query.items() if value not in {None, "", False}}
        return f"{base_of(request)}{path}" + (f"?{urlencode(values, errors='replace')}" if values else "")

    is_known = visitor is not ANYBODY
    variables = {
        "access": board.access,
        "hides_results": board.hides_results,
        # Who may not read does not learn where the ledger is.
        "ledger": "" if getattr(request.state, "visitor", None) is None else board.ledger.store.url,
        "link": link,
        "may_act": board.access.allows_actions and is_known,
        "visitor": visitor,
        **context,
    }
    return HTMLResponse(TEMPLATES.get_template(name).render(variables), status)


def trouble(request: Request, status: int, title: str, text: str, *, again: bool = False) -> Response:
    """Return a page that says what went wrong. With ``again``, the browser asks once more after some seconds."""
    answer = page(request, "trouble.html", {"title": title, "text": text, "again": again}, status)
    if again:
        answer.headers["Refresh"] = answer.headers["Retry-After"] = "5"
    return answer


def redirect(request: Request, path: str) -> Response:
    """Return the answer that sends the browser to another page of the dashboard."""
    return RedirectResponse(f"{base_of(request)}{path}", 303)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. A field that is given twice counts once.

    Raises:
        HTTPException: the form is too large, or no text.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise HTTPException(413, "That form is too large")
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise HTTPException(400, "That form cannot be read") from None
    return {name: values[0] for name, values in fields.items()}


def asks_to_read(request: Request) -> bool:
    """Return whether the visitor asked to read the ledger. A page of another site cannot ask: it could cost money."""
    elsewhere = request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
    return bool(request.query_params.get("scan")) and not elsewhere


def query_of(request: Request) -> RecordQuery:
    """Return the filters of a list.

    Raises:
        ValueError: a status or an age is not one.
    """
    query = request.query_params
    states = tuple(state.upper() for state in query.getlist("status") if state)
    older, newer = (seconds(age) if (age := query.get(name)) else None for name in ("older", "newer"))
    criteria = Criteria(states, older, newer)
    criteria.check()
    prefix = query.get("prefix", "")
    return RecordQuery(criteria, prefix, query.get("after"))
