"""The pages that read: the overview, lists of records, search, handlers, counts and the audit."""

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from onceward.core.protocol import STATES
from onceward.core.views import Criteria
from onceward.dashboard import audit as entries
from onceward.dashboard import needs, reading, searching
from onceward.dashboard.asking import AGES, asks_to_read, query_of
from onceward.dashboard.board import Board, board_of
from onceward.dashboard.reading import RecordQuery
from onceward.dashboard.showing import row

_ENTRIES: Final = 500  # records of a page of the audit: what somebody did, and how it ended


def overview(request: Request) -> Response:
    """Counts, and what needs a person."""
    board = board_of(request)
    survey = board.sampler.latest()
    trouble = needs.trouble(board.ledger, survey)
    known = {"survey": survey, "rate": board.sampler.rate(), "trouble": trouble}
    return board.renderer.page(request, "overview.html", known)


def records(request: Request) -> Response:
    """A list by status, age and the beginning of the key."""
    board, query = board_of(request), query_of(request)
    survey = board.sampler.latest()
    asked = asks_to_read(request)
    told = {
        "query": query,
        "survey": survey,
        "states": STATES,
        "ages": AGES,
        "scan": asked,
        "asked": request.query_params,
    }
    if not asked and not query.is_quick(survey):
        return board.renderer.page(request, "records.html", told | {"listing": None, "rows": []})
    listing = reading.listing(board.ledger, query)
    rows = [row(record, listing.now, hides_results=board.hides_results) for record in listing.records]
    return board.renderer.page(request, "records.html", told | {"listing": listing, "rows": rows})


def search(request: Request) -> Response:
    """Find one record, by what somebody has of it."""
    board = board_of(request)
    text = request.query_params.get("q", "").strip()
    if not text:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/records", 303)
    survey = board.sampler.latest()
    found = searching.search(board.ledger, survey, text)
    rows = [row(record, found.now, hides_results=board.hides_results) for record in found.records]
    known = {"text": text, "found": found, "rows": rows, "survey": survey}
    return board.renderer.page(request, "search.html", known)


def handlers(request: Request) -> Response:
    """The namespaces of keys, with a sample of each."""
    board = board_of(request)
    survey = board.sampler.latest()
    names, more = searching.names(board.ledger, survey)
    told = [searching.handler(board.ledger, name) for name in names if name != entries.NAMESPACE]
    by = request.query_params.get("sort", "name")
    order = {
        "typical": lambda one: -(one[0].typical or 0.0),
        "slowest": lambda one: -(one[0].slowest or 0.0),
        "last": lambda one: -one[0].last,
    }
    told.sort(key=order.get(by, lambda one: one[0].name))
    known = {"handlers": told, "more": more, "survey": survey, "sort": by}
    return board.renderer.page(request, "handlers.html", known)


def count(request: Request) -> Response:
    """Count by reading the ledger, a part at a time; each part begins where the link of the last one says."""
    board, told = board_of(request), request.query_params
    survey, prefix = board.sampler.latest(), told.get("prefix", "")
    so_far = {name: int(told.get(name, "0")) for name in ("total", *STATES, "lapsed", "expired", "damaged")}
    after, stopped, asked = told.get("after"), False, asks_to_read(request)
    if asked:
        so_far, after, stopped = _counted(board, so_far, prefix, after)
    known = {"counts": so_far, "after": after, "stopped": stopped, "survey": survey, "prefix": prefix}
    return board.renderer.page(request, "count.html", known | {"scanned": asked})


def _counted(
    board: Board, so_far: dict[str, int], prefix: str, after: str | None
) -> tuple[dict[str, int], str | None, bool]:
    end = reading.ends()
    counts: dict[str, int] = {}
    point = after
    for found in board.ledger.counting(prefix, after=after):
        counts, point = found
        if reading.is_over(end):
            break
    return {name: number + counts.get(name, 0) for name, number in so_far.items()}, point, point is not None


def audit(request: Request) -> Response:
    """Who has done what, the latest first."""
    board = board_of(request)
    survey = board.sampler.latest()
    query = RecordQuery(Criteria(), f"{entries.NAMESPACE}:", request.query_params.get("after"))
    asked = asks_to_read(request)
    listing = reading.listing(board.ledger, query, _ENTRIES) if asked or query.is_quick(survey) else None
    told = [] if listing is None else entries.latest(board.ledger, listing.records)
    known = {"entries": told, "listing": listing, "survey": survey, "starts": query.after is None}
    return board.renderer.page(request, "audit.html", known)
