"""The picture of the rooms, from the floors that the linter holds (pyproject.toml)."""

import re
import tomllib
from pathlib import Path

from svg import box, lines, picture, text, wrapped

ROOT = Path(__file__).parents[2]
FLOORS = (  # a name, the lowest of its rooms, and what it does
    ("programs", "terminal", "commands, pages, pipelines"),
    ("faces", "sqlalchemy", "read a key, call a guard, translate the outcome"),
    ("rules of hosts", "consumers", "HTTP's header; what any queue needs"),
    ("guards", "outbox", "claim, run, record: one key or many"),
    ("stores", "wire", "atomic registers: they decide nothing"),
    ("forms", "observe", "keys, results, events"),
    ("the protocol", "lazily", "the state machine and its steps: no I/O"),
)


def draw() -> str:
    """Return the picture."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(one for one in contracts if one["type"] == "layers")["layers"]
    rooms = [room for layer in layers for room in re.findall(r"\w+", layer)]
    parts, y = [], 16
    for name, lowest, does in FLOORS:
        end = rooms.index(lowest) + 1
        shown, rooms = wrapped(", ".join(rooms[:end]), 84), rooms[end:]
        height = 40 + 16 * len(shown)
        parts += [box((16, y), (808, height)), text((30, y + 24), name, "head"), text((200, y + 24), does)]
        parts.append(lines((200, y + 44), shown, "small"))
        y += height + 8
    return picture((840, y + 8), "The floors of the house: a room imports lower floors only", parts)
