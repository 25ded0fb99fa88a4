"""The YAML of a pipeline as a tree whose parts know their line and column, and the mistakes found in it."""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from onceward.errors import OncewardError

LONGEST: Final = 1_000_000  # characters of a file
_MOST: Final = 20_000  # parts of a file, with those that an alias repeats
_DEEPEST: Final = 60
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
        value: a dict or list of Marked, or the scalar itself.
        place: where it begins.
        name_place: where its name stands in a mapping; of another part, where it begins.
        is_filled: whether a variable fills a part of the text, which can be a secret.
    """

    value: Any
    place: Position
    name_place: Position
    is_filled: bool = False

    def plain(self) -> Any:
        """Return it as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {name: part.plain() for name, part in self.value.items()}
        if isinstance(self.value, list):
            return [part.plain() for part in self.value]
        return self.value

    def part_at(self, *path: str | int) -> "Marked":
        """Return a part, or the last part on the way to it that exists."""
        part = self
        for name in path:
            value: Any = part.value
            if name not in (value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()):
                break
            part = value[name]
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
        within: Any = self.value if isinstance(self.value, list) else ()
        if deep and isinstance(self.value, dict):
            within = self.value.values()
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


def parse(text: str, environ: Mapping[str, str] = os.environ) -> tuple[Marked | None, list[Mistake]]:
    """Return the tree of a YAML text, and the mistakes in it. Without a tree nothing else can be checked.

    ``${NAME}`` and ``${NAME:-default}`` in a text become variables of ``environ``.
    """
    reader = _Reader(environ)
    try:
        tree = reader.read(_composed(text), 0)
        if not isinstance(tree.value, dict):
            raise _Unreadable(tree.place, "a pipeline is a mapping, as in name: orders")
    except _Unreadable as error:
        return None, [*reader.mistakes, Mistake(*error.args)]
    return tree, reader.mistakes


class _Unreadable(Exception):
    """Nothing else can be checked. Its arguments are those of the mistake."""


def _composed(text: str) -> Any:
    """Return PyYAML's tree of a text."""
    import yaml

    place = Position(1, 1)
    if len(text) > LONGEST:
        raise _Unreadable(place, f"the file has more than {LONGEST} characters")
    try:
        node = yaml.compose(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Unreadable(
            place if mark is None else _place(mark), f"not YAML: {error.problem or error.context}"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        before = text[: getattr(error, "position", 0)]
        place = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        lines = str(error).splitlines() or [type(error).__name__]
        raise _Unreadable(place, f"not YAML: {lines[0]}") from error
    except RecursionError:
        raise _Unreadable(place, "not YAML that can be read: it is nested too deeply") from None
    if node is None:
        raise _Unreadable(place, "the file is empty")
    return node


class _Reader:
    """Makes the tree of a composed document."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self._environ = environ
        self._count = 0

    def read(self, node: Any, depth: int, name_place: Position | None = None) -> Marked:
        place = _place(node.start_mark)
        self._count += 1
        if self._count > _MOST:
            raise _Unreadable(place, f"the file has more than {_MOST} parts, counting those that aliases repeat")
        if depth > _DEEPEST:
            raise _Unreadable(place, f"nested more than {_DEEPEST} levels deep, or an alias contains itself")
        if node.id == "mapping":
            value: Any = self._mapping(node, depth)
        elif node.id == "sequence":
            value = [self.read(part, depth + 1) for part in node.value]
        else:
            value = self._scalar(node, place)
        return Marked(value, place, name_place or place, isinstance(value, str) and value != node.value)

    def _mapping(self, node: Any, depth: int) -> dict[str, Marked]:
        parts: dict[str, Marked] = {}
        for key, value in node.value:
            at = _place(key.start_mark)
            name = str(key.value) if key.id == "scalar" else None
            if name is None or key.tag.endswith(":null"):
                self.mistakes.append(Mistake(at, "a name must be a text"))
            elif name in parts:
                first = parts[name].name_place.line
                self.mistakes.append(Mistake(at, f"{name!r} is here twice; the first is in line {first}"))
            else:
                parts[name] = self.read(value, depth + 1, at)
        return parts

    def _scalar(self, node: Any, place: Position) -> object:
        kind = node.tag.rpartition(":")[2]
        if kind == "str":
            return self._filled(node.value, place)
        if kind in _CORE:
            with suppress(ValueError):
                return _CORE[kind][2](node.value)
        self.mistakes.append(Mistake(place, f"{node.tag} is not supported: give text, a number, true, false or null"))
        return None

    def _filled(self, text: str, place: Position) -> str:
        def value(match: re.Match[str]) -> str:
            value = self._environ.get(match[1], match[2])
            if value is None:
                self.mistakes.append(
                    Mistake(place, f"${{{match[1]}}} is not set; set it, or write ${{{match[1]}:-default}}")
                )
            return value or ""

        return _VARIABLE.sub(value, text) if "${" in text else text


# The scalars of YAML 1.2's core schema: their form, the characters that they begin with, and how they are read.
_CORE: Final[dict[str, tuple[str, str, Callable[[str], object]]]] = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
        lambda text: int(text.replace("_", ""), 0 if text[1:2] in {"x", "o"} else 10),
    ),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf)|\.nan",
        "-+.0123456789",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
    "null": (r"~|null|Null|NULL|", "~nN\0", lambda _: None),
}


def _loader() -> Any:
    """Return a loader of these scalars: ``on`` and ``yes`` are text, and so are dates."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[Any]] = {}

    for name, (form, first, _) in _CORE.items():
        starts = [c.strip("\0") for c in first]
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{form})\Z"), starts)
    return Loader


def _place(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)
