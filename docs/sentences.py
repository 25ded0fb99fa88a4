"""Find sentences that are too long: ``python docs/sentences.py [FILE]...`` prints file:line and the number of words of each."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LONGEST = 30  # words

_HIDDEN = re.compile(r"^ *(```+)[^\n]*\n.*?^ *\1 *$|<!--.*?-->|\A---\n.*?^---$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`]+?\1")
_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_APART = re.compile(r"^\s*$|^ *(?:[-*+]|\d+\.) |^\s*\||^#|^!!! |^\?\?\? ")  # a line that goes on with nothing
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.!?…][\"'”)*_]*(?:\s+|$)")


class Sentence(NamedTuple):
    """A sentence, and where it begins."""

    line: int
    words: int
    text: str


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page, without code. A table's cell and an item of a list end the sentence before them."""
    shown = _HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", "", hidden[0]), text)
    for line, block in _blocks(shown):
        for cell in re.split(r"(?<!\\)\|", block) if block.lstrip().startswith("|") else [block]:
            at = 0
            for end in [*(found.end() for found in _END.finditer(cell)), len(cell)]:
                one = cell[at:end]
                words = [word for word in one.split() if re.search(r"\w", word)]
                if words:
                    before = len(cell[:at]) + len(one) - len(one.lstrip())
                    yield Sentence(line + cell.count("\n", 0, before), len(words), " ".join(one.split()))
                at = end


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, items, rows and headings, with the number of their first line."""
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if block and (_APART.match(line) or block[-1].startswith("#")):
            yield number - len(block), _plain("\n".join(block))
            block = []
        if line.strip():
            block.append(line)


def _plain(block: str) -> str:
    """Return what is read: code counts as one word, a link as its text."""
    block = _CODE.sub(lambda code: "code" + "\n" * code[0].count("\n"), block)
    return _LINK.sub(r"\1", block)


def pages() -> list[Path]:
    """Return every page that people read."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def too_long(page: Path) -> list[Sentence]:
    """Return the sentences of a page that have too many words."""
    return [one for one in sentences(page.read_text(encoding="utf-8")) if one.words > LONGEST]


if __name__ == "__main__":
    found = 0
    for path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        for one in too_long(path):
            found += 1
            print(f"{path.relative_to(ROOT)}:{one.line}: {one.words} words: {one.text}")
    sys.exit(f"{found} sentences of more than {LONGEST} words" if found else 0)
