"""The page of one record: its whole story."""

from starlette.requests import Request
from starlette.responses import Response

from onceward import terminal
from onceward.core.attempts import attempts_of
from onceward.core.origin import read_origin
from onceward.core.protocol import SOME_DAY
from onceward.core.record import Record
from onceward.core.views import last_change
from onceward.dashboard import audit
from onceward.dashboard.actions import possible
from onceward.dashboard.board import Board, board_of
from onceward.dashboard.rendering import block
from onceward.dashboard.showing import advice, hidden, kept_in, outbox_of, pretty, state_of, steps_of, why
from onceward.stores.contract import DamagedRecord, NotFound


def record(request: Request) -> Response:
    """Show a record, its actions, and what people have done to it."""
    board, key = board_of(request), request.query_params.get("key", "")
    try:
        found, now = board.ledger.show(key, whole=bool(request.query_params.get("whole")))
    except NotFound:
        known = {"key": key, "damaged": None, "entries": audit.entries_of(board.ledger, key)}
        return board.renderer.page(request, "no_record.html", known, 404)
    except DamagedRecord as error:
        known = {"key": key, "damaged": error.damaged.why, "entries": audit.entries_of(board.ledger, key)}
        return board.renderer.page(request, "no_record.html", known)
    return board.renderer.page(request, "record.html", _story(board, found, now))


def _story(board: Board, found: Record, now: float) -> dict[str, object]:
    steps = steps_of(found)
    kept, outbox = kept_in(found), outbox_of(found)
    return {
        "record": found,
        "now": now,
        "state": state_of(found, now),
        "why": why(found, now, hides_results=board.hides_results),
        "advice": advice(found, now),
        "changed": last_change(found, now),
        "attempts": attempts_of(found, now)[::-1],
        "steps": steps if isinstance(steps, list) else [],
        "steps_damaged": steps if isinstance(steps, str) else None,
        "kept": kept,
        "outbox": outbox if isinstance(outbox, list) else [],
        "outbox_damaged": outbox if isinstance(outbox, str) else None,
        "refused_only": found.due_at is not None and found.due_at - now > SOME_DAY,
        "origin": read_origin(found.origin),
        "result": None if found.result is None or kept is not None else block(pretty(found.result)),
        "pretty": lambda text: block(pretty(text)),
        "actions": possible(found, now),
        "entries": audit.entries_of(board.ledger, found.key),
    }


def as_json(request: Request) -> Response:
    """Give all fields of a record as JSON; times are seconds since the epoch on the store's clock."""
    board = board_of(request)
    try:
        found, _ = board.ledger.show(request.query_params.get("key", ""), whole=not board.hides_results)
    except NotFound as error:
        return Response(terminal.json({"error": str(error)}), 404, media_type="application/json")
    if board.hides_results:
        found = hidden(found)
    return Response(terminal.json(found._asdict()), media_type="application/json")
