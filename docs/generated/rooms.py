"""The rooms of the house, floor by floor: the layers of the linter, and what the first docstring of each says."""

import ast
import re
import tomllib
from pathlib import Path

import onceward
from generated.docstrings import plain
from generated.markdown import code, table

SOURCE = Path(onceward.__file__).parent
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def part() -> str:
    """Return the table, from the top floor down."""
    floors = layers()
    rows = [
        (str(len(floors) - number) if first else "", code(name), _text(path))
        for number, floor in enumerate(floors)
        for first, (name, path) in _rooms(floor)
    ]
    return table(("floor", "room", "what it is"), rows)


def layers() -> list[list[str]]:
    """Return the names on each floor, as the linter has them."""
    contracts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    found = next(one for one in contracts if one["type"] == "layers")["layers"]
    return [re.findall(r"\w+", layer) for layer in found]


def _rooms(floor: list[str]) -> list[tuple[bool, tuple[str, Path]]]:
    found = []
    for name in floor:
        folder = SOURCE / name
        files = sorted(folder.rglob("__init__.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        found += [(_name(file), file) for file in files]
    return [(number == 0, room) for number, room in enumerate(found)]


def _name(file: Path) -> str:
    inside = file.relative_to(SOURCE)
    return f"{inside.parent}/" if file.stem == "__init__" else str(inside)


def _text(file: Path) -> str:
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return plain(said.partition("\n\n")[0])
