"""Turns templates into answers. The text of others becomes harmless here: HTML is escaped, and controls are made visible."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from onceward.core.views import relative
from onceward.dashboard.access import ANYBODY, Access
from onceward.terminal import lines

FOLDER: Final = Path(__file__).parent
_LONGEST_LINE: Final = 160  # characters of a key or reason in a table
LONGEST: Final = 20_000  # characters of a result on a page; the link to its JSON has all


def line(text: str, longest: int = _LONGEST_LINE) -> str:
    """Return a text of others as one line, with its controls visible, and cut."""
    visible = lines(text[: longest + 1]).replace("\n", "\\n").replace("\t", "\\t")
    return visible if len(visible) <= longest else f"{visible[: longest - 1]}…"


def block(text: str) -> str:
    """Return a text of others with its newlines, and cut."""
    visible = lines(text[:LONGEST])
    return visible if len(text) <= LONGEST else f"{visible}…"


def moment(seconds: float, now: float | None = None) -> Markup:
    """Return a time in UTC, which the page's script shows in the reader's zone; or relative to ``now``, the store's."""
    phrase = None if now is None else relative(seconds, now)
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("{}").format(phrase or f"{seconds:.0f} s")
    kind = Markup(" data-relative") if phrase else ""
    text = phrase or at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}"{}>{}</time>').format(at.isoformat(), kind, text)


class Renderer:
    """The templates, and what all of them know.

    Args:
        ledger: where the ledger is, for people.
        access: the settings.
        hides_results: whether results and messages stay hidden.
    """

    def __init__(self, ledger: str, access: Access, *, hides_results: bool) -> None:
        self._access = access
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "line": line,
            "block": block,
            "moment": moment,
            "ago": moment,
            "number": "{:,}".format,
            "quoted": quote,
        }
        for name in self._environment.list_templates():
            self._environment.get_template(name)  # compiled before the first visitor comes
        self._environment.globals |= {"ledger": ledger, "access": access, "hides_results": hides_results}

    def page(self, request: Request, name: str, context: Mapping[str, object], status: int = 200) -> Response:
        """Return the answer that a template makes with ``context``."""
        base = request.scope.get("root_path", "")
        known_visitor = getattr(request.state, "visitor", None)
        visitor = known_visitor or ANYBODY

        def link(path: str, **query: object) -> str:
            values = {key: value for key, value in query.items() if value not in {None, "", False}}
            return f"{base}{path}" + (f"?{urlencode(values, errors='replace')}" if values else "")

        may_act = self._access.allows_actions and visitor is not ANYBODY
        form = self._access.form_token(visitor) if visitor is not ANYBODY else ""
        variables: dict[str, object] = {"link": link, "visitor": visitor, "may_act": may_act, "form": form, **context}
        if known_visitor is None:  # who may not read does not learn where the ledger is
            variables["ledger"] = ""
        return HTMLResponse(self._environment.get_template(name).render(variables), status)

    def trouble(self, request: Request, status: int, title: str, text: str, *, again: bool = False) -> Response:
        """Return a page that says what went wrong. With ``again``, the browser asks once more after some seconds."""
        answer = self.page(request, "trouble.html", {"title": title, "text": text, "again": again}, status)
        if again:
            answer.headers["Refresh"] = answer.headers["Retry-After"] = "5"
        return answer
