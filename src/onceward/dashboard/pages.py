"""The pages that read: the overview, lists of records, search, a record and the audit; and those of actions."""

from functools import partial
from typing import Final
from urllib.parse import unquote, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward import terminal
from onceward.core.attempts import attempts_of
from onceward.core.origin import read_origin
from onceward.core.record import Record
from onceward.core.views import SOME_DAY, STATES, Criteria, last_change
from onceward.core.writes import expiry_of
from onceward.dashboard import needs
from onceward.dashboard.access import ANYBODY
from onceward.dashboard.actions import ACTIONS, Action, Changed, Preview, possible, run_audited, version_of
from onceward.dashboard.asking import AGES, Board, asks_to_read, board_of, form_of, page, query_of, redirect, visitor_of
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
from onceward.errors import OncewardError, StoreError
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


# --- actions: the preview that names what will happen, and the action itself ---


def preview(request: Request) -> Response:
    """Say what an action will do, and ask for its confirmation."""
    _check_allowed(request)
    query = request.query_params
    # No detail, or a link could fill in a queue that is not yours.
    return _preview(request, query.get("action", ""), query.get("key", ""))


def _preview(
    request: Request, name: str, key: str, *, detail: str = "", wrong: str = "", status: int = 200
) -> Response:
    board, action = board_of(request), _action(name)
    record, now = board.ledger.show(key)
    what = possible(record, now).get(name)
    context: dict[str, object] = {
        "action": action,
        "preview": what,
        "record": record,
        "version": version_of(record),
        "wrong": wrong,
        "row": row(record, now, hides_results=board.hides_results),
        "now": now,
        "detail": detail,
    }
    return page(request, "act.html", context, status)


async def act(request: Request) -> Response:
    """Do what was confirmed."""
    _check_allowed(request)
    fields = await form_of(request)
    return await run_in_threadpool(partial(_act, request, fields))


def _act(request: Request, fields: dict[str, str]) -> Response:
    name, detail = fields.get("action", ""), fields.get("detail", "")
    key = unquote(fields.get("key", ""))  # a form would change newlines and controls
    board, action = board_of(request), _action(name)
    again = partial(_preview, request, name, key, detail=detail, status=409)
    record, now = board.ledger.show(key)
    what = possible(record, now).get(name)
    if what is None or version_of(record) != fields.get("version"):
        return again(wrong="The record has changed since you looked at it. Nothing was done. This is how it is now.")
    if wrong := _missing(what, fields):
        return again(wrong=wrong)
    visitor = visitor_of(request)
    who, why = f"{visitor.name} (by {visitor.by})", fields["why"].strip()[:1000]
    try:
        run_audited(board.ledger, record, name, who, why, lambda seen: action.run(seen, key, detail), detail)
    except Changed:
        return again(wrong="The record has changed at this moment. Nothing was done. This is how it is now.")
    except StoreError:
        raise
    except OncewardError as error:
        return again(wrong=f"It failed: {error}")
    query = urlencode({"key": key, "done": name}, errors="replace")
    return redirect(request, f"/record?{query}")


def _missing(what: Preview, fields: dict[str, str]) -> str | None:
    """Return what a confirmation lacks."""
    if not fields.get("why", "").strip():
        return "Say why. The audit keeps it."
    if what.loses is not None and fields.get("accept") != "yes":
        return "Confirm that you accept what will be lost."
    if what.choices and fields.get("detail") not in what.choices:
        return "Choose one."
    if _has_user(fields.get("detail", "")):
        return "Leave out the user and the password of that address: the audit would keep them."
    return None


def _has_user(text: str) -> bool:
    try:
        return "@" in urlsplit(text).netloc
    except ValueError:  # it is no address
        return False


def _check_allowed(request: Request) -> None:
    if not board_of(request).access.allows_actions or visitor_of(request) is ANYBODY:
        raise HTTPException(403, "This dashboard is read-only: start it with --allow-actions")


def _action(name: str) -> Action:
    if name not in ACTIONS:
        raise HTTPException(404, "There is no such action")
    return ACTIONS[name]
