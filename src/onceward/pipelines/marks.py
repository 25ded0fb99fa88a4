"""The YAML of a pipeline as a tree whose parts know their line and column, and the mistakes found in it."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onceward.errors import OncewardError

_MOST: Final = 20_000  # parts of a file, with those that an alias repeats
FILLED: Final = (
    "not valid here, and not shown, because a variable fills it; in an expression, a constant is written 'text'"
)
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Position(NamedTuple):
    """A line and a column of the file, from 1."""

    line: int
    column: int


class Mistake(NamedTuple):
    """What is wrong in a file, and where. A warning keeps nothing from running."""

    place: Position
    text: str
    is_warning: bool = False


class Marked(msgspec.Struct, eq=False):
    """A part of the file: a mapping, a list or a scalar.

    Attributes:
        value: as dicts, lists and scalars.
        place: where it begins.
        name_place: where its name stands in a mapping; of another part, where it begins.
        is_filled: whether a variable fills a part of the text, which can be a secret.
        parts: of a mapping by name, of a list by number.
    """

    value: Any
    place: Position
    name_place: Position
    is_filled: bool = False
    parts: "dict[str | int, Marked]" = {}

    def part_at(self, *path: str | int) -> "Marked":
        """Return a part, or the last part on the way to it that exists."""
        part = self
        for name in path:
            if name not in part.parts:
                break
            part = part.parts[name]
        return part

    def place_of(self, *path: str | int) -> Position:
        """Return the place of :meth:`part_at`."""
        part = self.part_at(*path)
        return part.place if part is self else part.name_place

    def told(self, text: str, *path: str | int, deep: bool = True) -> str:
        """Return the text of a mistake in a part, without what variables fill. ``deep``: it can quote all that is in a mapping."""
        return FILLED if self.part_at(*path).has_filled(deep=deep) else text

    def has_filled(self, *, deep: bool) -> bool:
        """Return whether a variable fills it, or something in it."""
        within = self.parts.values() if deep or isinstance(self.value, list) else ()
        return self.is_filled or any(part.has_filled(deep=deep) for part in within)


class PipelineInvalid(OncewardError):
    """The file of a pipeline has mistakes. Nothing ran.

    Cause: The file has wrong or missing settings. The error gives the line and column of each mistake.

    Fix: Correct them. ``onceward vet FILE`` lists them.

    Attributes:
        mistakes: all mistakes that were found.
    """

    def __init__(self, file: str, mistakes: list[Mistake]) -> None:
        lines = [f"{file}:{one.place.line}:{one.place.column}: {one.text}" for one in mistakes]
        super().__init__("\n".join(lines))
        self.mistakes = mistakes


def parse(text: str | bytes, environ: Mapping[str, str] = os.environ) -> tuple[Marked | None, list[Mistake]]:
    """Return the tree of a YAML text, and the mistakes in it. Without a tree nothing else can be checked.

    ``${NAME}`` and ``${NAME:-default}`` in a text become variables of ``environ``.
    """
    reader = _Reader(environ)
    try:
        tree = reader.read(_composed(text))
        if not isinstance(tree.value, dict):
            raise _Unreadable(tree.place, "a pipeline is a mapping, as in name: orders")
    except _Unreadable as error:
        return None, [*reader.mistakes, Mistake(*error.args)]
    return tree, reader.mistakes


class _Unreadable(Exception):
    """Nothing else can be checked. Its arguments are those of the mistake."""


def _composed(text: str | bytes) -> Any:
    """Return PyYAML's tree of a text. No scalar of it is read yet."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise _Unreadable(Position(1, 1) if mark is None else _place(mark), f"not YAML: {reason}") from error
    if node is None:
        raise _Unreadable(Position(1, 1), "the file is empty")
    return node


class _Reader:
    """Makes the tree of a composed document."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self._environ = environ
        self._count = 0

    def read(self, node: Any, name_place: Position | None = None) -> Marked:
        place = _place(node.start_mark)
        self._count += 1
        if self._count > _MOST:
            raise _Unreadable(place, f"the file has more than {_MOST} parts, counting those that aliases repeat")
        parts: dict[str | int, Marked] = {}
        if node.id == "mapping":
            parts = self._mapping(node)
            value: Any = {name: part.value for name, part in parts.items()}
        elif node.id == "sequence":
            parts = {number: self.read(part) for number, part in enumerate(node.value)}
            value = [part.value for part in parts.values()]
        else:
            value = self._scalar(node, place)
        is_filled = isinstance(value, str) and value != node.value
        return Marked(value, place, name_place or place, is_filled, parts)

    def _mapping(self, node: Any) -> dict[str | int, Marked]:
        parts: dict[str | int, Marked] = {}
        for key, value in node.value:
            at = _place(key.start_mark)
            if key.id != "scalar":
                self.mistakes.append(Mistake(at, "a name must be a text"))
            elif key.value in parts:
                first = parts[key.value].name_place.line
                self.mistakes.append(Mistake(at, f"{key.value!r} is here twice; the first is in line {first}"))
            else:
                parts[key.value] = self.read(value, at)
        return parts

    def _scalar(self, node: Any, place: Position) -> object:
        if not node.tag.endswith(":str"):
            self.mistakes.append(
                Mistake(place, f"{node.tag} is not supported: give text, a number, true, false or null")
            )
        elif node.style is not None:
            pass
        elif (word := node.value.lower()) in _WORDS:
            return _WORDS[word]
        elif _NUMBER.fullmatch(node.value):
            return int(node.value) if node.value.lstrip("-").isdigit() else float(node.value)
        return self._filled(node.value, place)

    def _filled(self, text: str, place: Position) -> str:
        def value(match: re.Match[str]) -> str:
            value = self._environ.get(match[1], match[2])
            if value is None:
                self.mistakes.append(
                    Mistake(place, f"${{{match[1]}}} is not set; set it, or write ${{{match[1]}:-default}}")
                )
            return value or ""

        return _VARIABLE.sub(value, text) if "${" in text else text


# What stands without quotes: the words and numbers of JSON, and all else is text, also ``on``, ``yes`` and dates.
_WORDS: Final = {"true": True, "false": False, "null": None, "~": None, "": None}
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,300})(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?")


def _place(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)
