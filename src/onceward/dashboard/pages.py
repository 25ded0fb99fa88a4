"""The pages that read: the overview, lists of records, search, a record and the audit."""

from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from onceward import terminal
from onceward.core.attempts import attempts_of
from onceward.core.origin import read_origin
from onceward.core.record import Record
from onceward.core.views import SOME_DAY, STATES, Criteria, last_change
from onceward.core.writes import expiry_of
from onceward.dashboard import needs
from onceward.dashboard.actions import possible
from onceward.dashboard.asking import AGES, Board, asks_to_read, board_of, page, query_of, redirect
from onceward.dashboard.needs import RecordQuery
from onceward.dashboard.showing import (
    block,
    hidden,
    kept_in,
    next_words,
    outbox_of,
    pretty,
    row,
    state_of,
    steps_of,
    why,
)
from onceward.stores import audit as entries
from onceward.stores.contract import DamagedRecord, NotFound


def record(request: Request) -> Response:
    """Show a record, its actions, and what people have done to it."""
    board, key = board_of(request), request.query_params.get("key", "")
    damaged, status = None, 404
    try:
        record, now = board.ledger.show(key, whole=bool(request.query_params.get("whole")))
    except NotFound:
        pass
    except DamagedRecord as error:
        damaged, status = error.damaged.why, 200
    else:
        return page(request, "record.html", _story(board, record, now))
    context = {"key": key, "damaged": damaged, "entries": entries.entries_of(board.ledger, key)}
    return page(request, "no_record.html", context, status)


def _story(board: Board, record: Record, now: float) -> dict[str, object]:
    stored = kept_in(record)
    return {
        "record": record,
        "now": now,
        "state": state_of(record, now),
        "why": why(record, now, hides_results=board.hides_results),
        "advice": next_words(record, now),
        "changed": last_change(record, now),
        "expiry": expiry_of(record),
        "attempts": attempts_of(record, now)[::-1],
        "steps": steps_of(record),
        "kept": stored,
        "outbox": outbox_of(record),
        "refused_only": record.due_at is not None and record.due_at - now > SOME_DAY,
        "origin": read_origin(record.origin),
        "result": None if record.result is None or stored is not None else block(pretty(record.result)),
        "pretty": lambda text: block(pretty(text)),
        "actions": possible(record, now),
        "entries": entries.entries_of(board.ledger, record.key),
    }


def as_json(request: Request) -> Response:
    """Give all fields of a record as JSON; times are seconds since the epoch on the store's clock."""
    board = board_of(request)
    try:
        record, _ = board.ledger.show(request.query_params.get("key", ""), whole=not board.hides_results)
    except NotFound as error:
        return Response(terminal.json({"error": str(error)}), 404, media_type="application/json")
    if board.hides_results:
        record = hidden(record)
    return Response(terminal.json(record._asdict()), media_type="application/json")


_ENTRIES: Final = 500  # records of a page of the audit: what somebody did, and how it ended


def overview(request: Request) -> Response:
    """Counts, and what needs a person."""
    board = board_of(request)
    survey = board.ledger.survey()
    trouble = needs.trouble(board.ledger, survey)
    context = {"survey": survey, "trouble": trouble}
    return page(request, "overview.html", context)


def records(request: Request) -> Response:
    """A list by status, age and the beginning of the key."""
    board, query = board_of(request), query_of(request)
    survey = board.ledger.survey()
    scan = asks_to_read(request)
    context = {
        "query": query,
        "survey": survey,
        "states": STATES,
        "ages": AGES,
        "scan": scan,
        "asked": request.query_params,
    }
    if not scan and not query.is_quick(survey):
        return page(request, "records.html", context | {"listing": None, "rows": []})
    listing = needs.listing(board.ledger, query)
    rows = [row(record, listing.now, hides_results=board.hides_results) for record in listing.records]
    return page(request, "records.html", context | {"listing": listing, "rows": rows})


def search(request: Request) -> Response:
    """Show the record of a key, or the list of the keys that begin so."""
    text = request.query_params.get("q", "").strip()
    try:
        board_of(request).ledger.show(text)
    except NotFound:
        return redirect(request, f"/records?{urlencode({'prefix': text}, errors='replace')}")
    except DamagedRecord:
        pass  # its page says why
    return redirect(request, f"/record?{urlencode({'key': text}, errors='replace')}")


def audit(request: Request) -> Response:
    """Who has done what, the latest first."""
    board = board_of(request)
    survey = board.ledger.survey()
    query = RecordQuery(Criteria(), f"{entries.NAMESPACE}:", request.query_params.get("after"))
    scan = asks_to_read(request)
    listing = needs.listing(board.ledger, query, _ENTRIES) if scan or query.is_quick(survey) else None
    rows = [] if listing is None else entries.latest(board.ledger, listing.records)
    context = {"entries": rows, "listing": listing, "survey": survey, "starts": query.after is None}
    return page(request, "audit.html", context)
