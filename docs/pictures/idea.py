"""The picture of the one idea: of three deliveries of a key, one runs the handler."""

from svg import box, lines, path, picture, text

ROWS = (  # what comes, what the ledger says, what happens, and how its box looks
    ("order 42", "no record: claim it", "the handler runs, its result is recorded", "good"),
    ("order 42, again", "COMPLETED", "the recorded result, and nothing runs", "box"),
    ("order 42, while it runs", "IN_PROGRESS", "waits, or comes again later", "box"),
    ("order 42, its worker is dead", "IN_PROGRESS, the lease is over", "taken over by one worker, with the same derived key", "warn"),
)  # fmt: skip


def draw() -> str:
    """Return the picture."""
    parts = [text((x, 30), head, "head mid") for x, head in ((118, "a delivery"), (372, "the ledger"), (672, "so"))]
    for number, (comes, says, then, kind) in enumerate(ROWS):
        y = 48 + 54 * number
        for x, width, words, look in ((16, 204, comes, "box"), (262, 220, says, "box"), (524, 300, then, kind)):
            parts += [box((x, y), (width, 40), look), lines((x + width / 2, y + 25), [words], "small mid")]
        parts += [path(f"M222 {y + 20} H258"), path(f"M484 {y + 20} H520")]
    return picture((840, 48 + 54 * len(ROWS) + 6), "Of all deliveries of a key, one runs the handler", parts)
