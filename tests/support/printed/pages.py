"""The blocks of code in the pages that people read. CONTRIBUTING says how a block is marked."""

import re
import runpy
from collections.abc import Mapping
from textwrap import dedent
from types import MappingProxyType
from typing import NamedTuple

from places import DOCS, ROOT

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[a-z ]+): (?P<said>[^>]+) -->\n+)?"
    r'^(?P<indent> *)```(?P<language>[\w-]*)(?: title="(?P<title>[^"]+)")?[^\n]*\n(?P<text>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)
PAGES = {str(page.relative_to(ROOT)): page for page in runpy.run_path(str(DOCS / "sentences.py"))["pages"]()}


class Block(NamedTuple):
    """A block, with the mark above it: ``<!-- run: NAME -->``, or ``<!-- not run: REASON -->``."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    mark: str | None
    said: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, such as "docs/index.md"."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("text")),
            found["language"],
            found["title"],
            dedent(found["text"]),
            found["mark"],
            found["said"],
        )
        for found in _BLOCK.finditer(text)
    ]


def run(page: str, names: dict[str, object], replaced: Mapping[str, str] = MappingProxyType({})) -> dict[str, object]:
    """Run the Python of a page, in order, and return all names. A traceback shows the line of the page.

    Args:
        page: such as "docs/index.md".
        names: what the page leaves to its reader.
        replaced: texts of the page, and what to write in their place, such as a ledger's URL.
    """
    names.setdefault("__name__", "shop")
    for block in blocks(page):
        if block.language == "python" and block.mark != "not run":
            text = block.text
            for old, new in replaced.items():
                text = text.replace(old, new)
            exec(compile("\n" * block.line + text, str(ROOT / page), "exec"), names)
    return names
