"""The picture of the one idea: of three deliveries of a key, one runs the handler."""

from svg import box, lines, path, picture, text

ROWS = (  # what comes, what the ledger says, what happens, and how its box looks
    ("order 42", "no record: claim it", "the handler runs", "good"),
    ("order 42, again", "COMPLETED", "it gets the recorded result", "box"),
    ("order 42, meanwhile", "IN_PROGRESS", "it waits, or comes again", "box"),
    ("order 42, worker dead", "its lease is over", "one worker takes over", "warn"),
)  # fmt: skip


def draw() -> str:
    """Return the picture."""
    parts = [
        text((x, 30), head, "head mid") for x, head in ((92, "a delivery"), (300, "the ledger"), (524, "what happens"))
    ]
    for number, (comes, says, then, kind) in enumerate(ROWS):
        y = 48 + 54 * number
        for x, width, words, look in ((12, 160, comes, "box"), (216, 168, says, "box"), (424, 200, then, kind)):
            parts += [box((x, y), (width, 40), look), lines((x + width / 2, y + 25), [words], "small mid")]
        parts += [path(f"M174 {y + 20} H213"), path(f"M386 {y + 20} H421")]
    return picture((636, 48 + 54 * len(ROWS) + 6), "Of all deliveries of a key, one runs the handler", parts)
