"""The picture of the state machine, from the table that the code decides by."""

import sys
from collections import defaultdict
from pathlib import Path

from svg import box, lines, path, picture, text, wrapped

sys.path.insert(0, str(Path(__file__).parents[1]))
from transitions import ABSENT, TRANSITIONS

SIZE, BOX = (850, 490), (166, 108)
PLACES = {
    ABSENT: (14, 70),
    "IN_PROGRESS": (312, 70),
    "COMPLETED": (670, 70),
    "PARKED": (14, 340),
    "RELEASED": (312, 340),
}
MEANING = {
    ABSENT: "no record",
    "IN_PROGRESS": "a worker has the claim",
    "COMPLETED": "the result is recorded",
    "PARKED": "waits for a person",
    "RELEASED": "may be tried again",
}
# the path of each arrow, and where its words stand
ROUTES = {
    (ABSENT, "IN_PROGRESS"): ("M180 122 H310", (246, 114)),
    (ABSENT, "COMPLETED"): ("M130 70 C200 12 650 12 720 68", (425, 22)),
    (ABSENT, "PARKED"): ("M97 178 V338", (97, 262)),
    ("IN_PROGRESS", "COMPLETED"): ("M478 100 H668", (574, 92)),
    ("COMPLETED", "IN_PROGRESS"): ("M670 146 H480", (574, 164)),
    ("IN_PROGRESS", "PARKED"): ("M326 178 L160 338", (246, 262)),
    ("IN_PROGRESS", "RELEASED"): ("M366 178 V338", (366, 238)),
    ("RELEASED", "IN_PROGRESS"): ("M426 340 V180", (426, 292)),
    ("RELEASED", "PARKED"): ("M312 368 H182", (246, 360)),
    ("PARKED", "RELEASED"): ("M180 418 H310", (246, 436)),
    ("PARKED", "COMPLETED"): ("M97 448 C97 470 120 474 150 474 H560 C720 474 790 400 790 180", (420, 466)),
    ("RELEASED", "COMPLETED"): ("M464 340 L690 180", (576, 252)),
    ("COMPLETED", "RELEASED"): ("M740 178 C740 330 660 390 480 390", (676, 352)),
}


def draw() -> str:
    """Return the picture. A new pair of statuses needs a route first: KeyError names it."""
    steps: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, step, target, _ in TRANSITIONS:
        steps[source, target].append(step)
    parts = []
    for status, (x, y) in PLACES.items():
        middle = x + BOX[0] / 2
        parts += [
            box((x, y), BOX),
            text((middle, y + 26), status, "head mid"),
            text((middle, y + 44), MEANING[status], "small mid"),
        ]
        stays = steps.pop((status, status), [])
        notes = wrapped(f"stays: {', '.join(stays)}", 26) if stays else []
        if steps.pop((status, ABSENT), None):
            notes.append("may expire")
        parts.append(lines((middle, y + 64), notes))
    for pair, names in steps.items():
        way, at = ROUTES[pair]
        parts += [path(way), lines(at, [", ".join(names)], "small mid on")]
    return picture(SIZE, "The statuses of a record, and the steps that change them", parts)
