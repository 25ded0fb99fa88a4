"""The blocks of code in the pages that people read. CONTRIBUTING says how a block is marked."""

import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType
from typing import NamedTuple

from places import DOCS, ROOT

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[a-z ]+): (?P<said>[^>]+) -->\n+)?"
    r'^(?P<indent> *)```(?P<language>[\w-]*)(?: title="(?P<title>[^"]+)")?[^\n]*\n(?P<text>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)
MARK = "<!-- run as printed -->"  # below the heading of a page or a section whose blocks are run; tutorials need none
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


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the headings of a page: the number of the line, from 0, the level and the title."""
    fence = None
    for number, line in enumerate(text.split("\n")):
        if found := re.match(r" *(`{3,})", line):
            fence = found[1] if fence is None else None if line.strip() == fence else fence
        elif fence is None and (found := re.match(r"(#+) (.+)", line)):
            yield number, len(found[1]), found[2]


def section(page: str, title: str) -> str:
    """Return a section of a page, such as "docs/index.md", in its own lines: those above it are empty."""
    text = PAGES[page].read_text(encoding="utf-8")
    found = list(headings(text))
    ((start, level, _),) = [one for one in found if one[2] == title]
    end = next((number for number, other, _ in found if number > start and other <= level), None)
    return "\n" * start + "\n".join(text.split("\n")[start:end]) + "\n"


def parts(page: Path) -> dict[str, str]:
    """Return what is run as printed of a page, by its heading: all of a tutorial, or sections with the mark, up to the next mark."""
    text = page.read_text(encoding="utf-8")
    lines, found = text.split("\n"), list(headings(text))
    marks = [number for number, line in enumerate(lines) if line == MARK]
    begins = [max(one for one in found if one[0] < mark) for mark in marks]
    made = {}
    for start, level, title in begins:
        ends = [one[0] for one in found if one[0] > start and (one[1] <= level or one in begins)]
        made[title] = "\n" * start + "\n".join(lines[start : min(ends, default=None)]) + "\n"
    return made or ({found[0][2]: text} if page.parent.name == "tutorials" else {})


def blocks(page: str, title: str | None = None) -> list[Block]:
    """Return the blocks of a page, such as "docs/index.md", or of one of its sections."""
    return read(PAGES[page].read_text(encoding="utf-8") if title is None else section(page, title), page)


def read(text: str, page: str = "") -> list[Block]:
    """Return the blocks of a text."""
    found = []
    for at in _BLOCK.finditer(text):
        shown = at["language"], at["title"], dedent(at["text"]), at["mark"], at["said"]
        found.append(Block(page, text.count("\n", 0, at.start("text")), *shown))
    return found


def run(
    page: str, names: dict[str, object], replaced: Mapping[str, str] = MappingProxyType({}), title: str | None = None
) -> dict[str, object]:
    """Run the Python of a page, in order, and return all names. A traceback shows the line of the page."""
    names.setdefault("__name__", "shop")
    printed = "".join(parts(PAGES[page]).values())
    for block in blocks(page, title):
        if block.language == "python" and block.mark != "not run" and (title or block.text not in printed):
            text = block.text
            for old, new in replaced.items():
                text = text.replace(old, new)
            exec(compile("\n" * block.line + text, str(ROOT / page), "exec"), names)
    return names
