"""The picture of where each guarantee ends, from the table of docs/explanation/guarantees.md."""

from pathlib import Path

from svg import box, lines, picture, text, wrapped

PAGE = Path(__file__).parents[1] / "explanation" / "guarantees.md"
FIRST, CELL, TOP, GAP = (196, 74), (124, 74), 84, 6
KINDS = {"once": "good", "waits": "warn", "again": "bad"}


def rows() -> list[list[str]]:
    """Return the cells of the table, its head first."""
    table = PAGE.read_text(encoding="utf-8").split("<!-- picture: guarantees -->\n", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [cells[0], *cells[2:]]


def kind(cell: str) -> str:
    """Return the colour of a cell: its first word says it; a condition makes it a warning."""
    first, *more = cell.replace(",", "").replace(";", "").split()
    return "warn" if more else KINDS[first]


def draw() -> str:
    """Return the picture."""
    head, *body = rows()
    columns = [16 + FIRST[0] + GAP + number * (CELL[0] + GAP) for number in range(len(head) - 1)]
    parts = [lines((x + CELL[0] / 2, 30), wrapped(words, 19)) for x, words in zip(columns, head[1:], strict=True)]
    for number, (name, *cells) in enumerate(body):
        y = TOP + number * (CELL[1] + GAP)
        named = wrapped(name, 24)
        parts.append(lines((16, y + 42 - 9 * (len(named) - 1)), named, "head", 18))
        for x, cell in zip(columns, cells, strict=True):
            said = wrapped(cell, 17)
            parts += [box((x, y), CELL, kind(cell))]
            parts.append(lines((x + CELL[0] / 2, y + 42 - 8 * (len(said) - 1)), said, "mid small"))
    height = TOP + len(body) * (CELL[1] + GAP) + 34
    parts.append(
        text(
            (16, height - 16),
            "Green: the effect happens once. Red: it may happen again. Yellow: read what the box says.",
            "small",
        )
    )
    return picture((columns[-1] + CELL[0] + 16, height), "Where each guarantee ends", parts)
