"""The templates of pages. The text of others becomes harmless here: HTML is escaped, and controls are made visible."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from onceward.core.views import relative
from onceward.dashboard.showing import block
from onceward.terminal import lines

FOLDER: Final = Path(__file__).parent
_LONGEST_LINE: Final = 160  # characters of a key or reason in a table


def line(text: str, longest: int = _LONGEST_LINE) -> str:
    """Return a text of others as one line, with its controls visible, and cut."""
    visible = lines(text[: longest + 1]).replace("\n", "\\n").replace("\t", "\\t")
    return visible if len(visible) <= longest else f"{visible[: longest - 1]}…"


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


TEMPLATES: Final = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "line": line,
    "block": block,
    "moment": moment,
    "ago": moment,
    "number": "{:,}".format,
    "quoted": quote,
}
for _name in TEMPLATES.list_templates():
    TEMPLATES.get_template(_name)  # compiled before the first visitor comes
