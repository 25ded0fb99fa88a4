"""What the pages of one dashboard share, and what a request asks for: the fields of its form, and the filters of its address."""

from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

from onceward.core.arguments import seconds
from onceward.core.views import Criteria
from onceward.dashboard.access import ANYBODY, Access, Visitor, WrongTokens
from onceward.dashboard.reading import RecordQuery
from onceward.dashboard.rendering import Renderer
from onceward.dashboard.sampler import Sampler
from onceward.stores.ledger import Ledger

_LARGEST: Final = 64 * 1024  # bytes of a form
AGES: Final = ("1m", "15m", "1h", "1d", "7d")


class Board(NamedTuple):
    """The ledger, its counts, the settings and the templates, and the wrong tokens of the last minute."""

    ledger: Ledger
    sampler: Sampler
    access: Access
    renderer: Renderer
    hides_results: bool
    wrong: WrongTokens


def board_of(request: Request) -> Board:
    """Return the board of the dashboard that got a request."""
    return cast("Board", request.app.state.board)


def visitor_of(request: Request) -> Visitor:
    """Return who sent a request."""
    return getattr(request.state, "visitor", None) or ANYBODY


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
        told = parse_qs(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise HTTPException(400, "That form cannot be read") from None
    return {name: values[0] for name, values in told.items()}


def check_form(request: Request, fields: dict[str, str]) -> None:
    """Raise HTTPException if a form is not one of this visitor, or is too old."""
    if not board_of(request).access.is_form(visitor_of(request), fields.get("form", "")):
        raise HTTPException(403, "This form is too old, or of somebody else. Nothing was changed. Open it again")


def asks_to_read(request: Request) -> bool:
    """Return whether the visitor asked to read the ledger. A page of another site cannot ask: it could cost money."""
    elsewhere = request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
    return bool(request.query_params.get("scan")) and not elsewhere


def query_of(request: Request) -> RecordQuery:
    """Return the filters of a list.

    Raises:
        ValueError: a status or an age is not one.
    """
    told = request.query_params
    states = tuple(state.upper() for state in told.getlist("status") if state)
    older, newer = (seconds(age) if (age := told.get(name)) else None for name in ("older", "newer"))
    criteria = Criteria(states, older, newer)
    criteria.check()
    prefix = told.get("prefix", "")
    return RecordQuery(criteria, prefix, told.get("after"))
