"""The pages of actions: the preview that names what will happen, and the action itself."""

from functools import partial
from urllib.parse import unquote, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.dashboard.access import ANYBODY
from onceward.dashboard.actions import ACTIONS, Action, Changed, Preview, possible, run_audited, version_of
from onceward.dashboard.asking import board_of, form_of, page, redirect, visitor_of
from onceward.dashboard.showing import row
from onceward.errors import OncewardError, StoreError


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
