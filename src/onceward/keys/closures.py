"""Compares two functions of one name by their code, the values they close over and their defaults.

This runs none of the user's code but, at the end, ``==``. It keeps nothing of a lasting function alive.
"""

import gc
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Final, NamedTuple
from weakref import ref

Find = Callable[[], object]

_DEEPEST: Final = 3  # levels of functions within functions to compare
_MOST: Final = 100  # items or characters of a value to compare one by one
_VALUES: Final = frozenset(  # by name, because most of these modules need not be loaded
    f"builtins.{name}" for name in ("NoneType", "bool", "bytes", "complex", "ellipsis", "float", "int", "str")
) | {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "decimal.Decimal", "uuid.UUID"}


class Seen(NamedTuple):
    """A function: its code, itself while it lives, and the values it closes over and its defaults, by name.

    ``run`` identifies the run of its module: importlib.reload() makes a new one.
    """

    code: CodeType
    function: Callable[[], FunctionType | None]
    contents: "dict[str, _Content]"
    lasting: bool
    run: object

    @staticmethod
    def of(function: object, depth: int = 0, *, lasting: bool) -> "Seen | None":
        """Look at a function. A ``lasting`` one leads to the values it closes over, so keep none of them."""
        function = getattr(function, "__func__", function)
        for _ in range(_DEEPEST):
            if not isinstance(function, FunctionType):  # such as a functools.lru_cache
                function = getattr(function, "__wrapped__", None)
        if not isinstance(function, FunctionType):
            return None
        living = ref(function)
        contents = {}
        for name, value in _contents(function).items():
            find = partial(_found, living, name) if lasting else None
            contents[name] = _Content.of(value, find, depth + 1)
        return Seen(function.__code__, living, contents, lasting, function.__globals__.get("__spec__"))


class _Content(NamedTuple):
    """One value that a function closes over."""

    plain: object  # what can be compared when the value is gone: its class, and the value itself if it is plain
    get: Find | None = None  # returns the value, or None when it is gone; it is None itself when ``plain`` says all
    inner: Seen | None = None  # the contents of the value, if it is a function

    @staticmethod
    def of(value: object, find: Find | None, depth: int) -> "_Content":
        kind = called(type(value))
        if kind in _VALUES:
            return _Content((kind, _short(value)))
        if isinstance(value, Enum):
            return _Content((kind, value.name))
        if type(value) is tuple and len(value) <= _MOST:
            parts = [_Content.of(item, find, depth) for item in value]
            plain = (kind, *(part.plain for part in parts))
            return _Content(plain, _getter(value, find) if any(part.get for part in parts) else None)
        if isinstance(value, type):
            return _Content((kind, called(value)))
        if isinstance(value, ModuleType):
            return _Content((kind, value.__name__))
        if isinstance(value, FunctionType | MethodType | BuiltinMethodType):
            return _Content.of_function(value, find, depth)
        if kind == "onceward.once.Once":  # two on one ledger are equal
            return _Content((kind, getattr(getattr(value, "store", None), "url", None)))
        return _Content(kind, _getter(value, find))

    @staticmethod
    def of_function(value: FunctionType | MethodType | BuiltinMethodType, find: Find | None, depth: int) -> "_Content":
        bound = getattr(value, "__self__", None)
        inner = Seen.of(value, depth, lasting=find is not None) if depth <= _DEEPEST else None
        plain = (called(type(value)), called(value), called(type(bound)))
        return _Content(plain, _getter(bound, find and (lambda: getattr(find(), "__self__", None))), inner)


def _contents(function: FunctionType) -> dict[str, object]:
    code = function.__code__
    given = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    found: dict[str, object] = dict(zip(names[len(names) - len(given) :], given, strict=True))
    found |= function.__kwdefaults__ or {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def differing(first: Seen, second: Seen) -> str | None:
    """Return a difference between two functions of the same code, or None.

    If one of them is lasting, other objects of the same class count only while the first function lives.
    """
    if first.function() is second.function():
        return None
    names = sorted(first.contents.keys() & second.contents.keys())
    for name in names:
        if first.contents[name].plain != second.contents[name].plain:
            return _content(name)
    for name in names:
        if not _alike(first.contents[name], second.contents[name]):
            gone = (first.lasting or second.lasting) and _is_gone(first)
            return None if gone else _content(name)
    return None


def redefined(first: Seen, second: Seen) -> str | None:
    """Return where the first of two functions was written, if one run of a module defines both under one name."""
    if first.run is not second.run or first.code.co_filename != second.code.co_filename:
        return None
    if first.code.co_firstlineno == second.code.co_firstlineno or not _is_of_script_or_module(first, second):
        return None
    if _is_gone(first):
        return None
    return f"where it is written: line {first.code.co_firstlineno} of {first.code.co_filename}"


def _is_of_script_or_module(first: Seen, second: Seen) -> bool:
    """Return whether two functions are of one module, and not of a notebook, where people often redefine functions."""
    one, other = first.function(), second.function()
    if one is None or other is None or one.__globals__ is not other.__globals__ or "__file__" not in one.__globals__:
        return False
    # If not, they took another's name, as functools.wraps does.
    return all(function.__code__.co_qualname == function.__qualname__ for function in (one, other))


def _is_gone(seen: Seen) -> bool:
    if seen.function() is not None:
        gc.collect()  # rare; a function that only a cycle keeps alive counts as gone
    return seen.function() is None


def _alike(one: _Content, other: _Content) -> bool:
    inner, other_inner = one.inner, other.inner
    if inner is not None and other_inner is not None and inner.code is not other_inner.code:
        return False
    if inner is not None and other_inner is not None and differing(inner, other_inner) is not None:
        return False
    if one.get is None or other.get is None:
        return True
    first, second = one.get(), other.get()
    if first is second:
        return True
    try:
        # Two empty values are equal only until they get content.
        return bool(first) and bool(first == second)
    except Exception:  # a user's __eq__ can raise anything
        return False


def _found(living: Callable[[], FunctionType | None], name: str) -> object:
    """Return the value that a function has under a name; None when it is gone."""
    function = living()
    return None if function is None else _contents(function).get(name)


def _getter(value: object, find: Find | None) -> Find | None:
    """Return a function that returns ``value``. It keeps the value alive only if there is no other way."""
    if value is None:
        return None
    try:
        return ref(value)
    except TypeError:
        return find or (lambda: value)


def _short(value: object) -> object:
    """Return a plain value; for a long one, its length and hash."""
    return (len(value), hash(value)) if isinstance(value, str | bytes) and len(value) > _MOST else value


def called(thing: object) -> str:
    """Return the module and qualified name of a class or function."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def _content(name: str) -> str:
    return f"{name!r}, which it closes over or has as a default"
