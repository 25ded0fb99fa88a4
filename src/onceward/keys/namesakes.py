"""Refuses two handlers that share a default namespace by accident: the second would get the first one's results.

The default namespace is a function's module and qualified name. It is the same for two closures of one factory, a method
that two classes inherit, and two functions that a module calls ``_``. Functions are looked at once, when one is decorated or
first run. Calls cost nothing more; only a decorated method checks whether its class has changed since the last call. Functions
with a given name are left alone.
"""

import gc
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary, ref

Function = Callable[..., object]

_CLASS: Final = "the class whose method it is"


class _Seen(NamedTuple):
    """A function, without what it wraps. ``kept`` are the values of one that may be gone; ``run`` is the run of its module."""

    code: CodeType
    living: Callable[[], FunctionType | None]
    kept: dict[str, object] | None
    run: object

    def values(self) -> dict[str, object] | None:
        """Return what it closes over and its defaults; None if it is gone."""
        if self.kept is not None:
            return self.kept
        function = self.living()
        return None if function is None else _values(function)


def _values(function: FunctionType) -> dict[str, object]:
    code, given = function.__code__, function.__defaults__ or ()
    values: dict[str, object] = dict(zip(code.co_varnames[code.co_argcount - len(given) :], given, strict=False))
    values |= function.__kwdefaults__ or {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is not assigned yet
            values[name] = cell.cell_contents
    values.pop(function.__name__, None)  # one that calls itself closes over itself
    return {name: _weak(value) for name, value in values.items()}


def _weak(value: object) -> object:
    """Return a reference to a value, one and the same each time; the value itself if it can have none."""
    try:
        return ref(value)
    except TypeError:
        return value


def _are_same(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return one is other or (type(one) is type(other) and isinstance(one, str | bytes | int | float) and one == other)


class Namesakes:
    """The functions of one Once whose namespaces are their own names.

    Every Once on a ledger has one (those made by ``using`` share it), and sees those of the others while they live.

    Args:
        store: the ledger; in memory, each store object is a separate ledger.
        url: its URL.
    """

    def __init__(self, store: object, url: str) -> None:
        self._store = store  # kept alive, so that its id stays unique
        key = url if "://" in url else id(store)
        self._peers = _LEDGERS.setdefault(key, WeakValueDictionary())
        self._peers[id(self)] = self
        self.functions: dict[str, dict[CodeType, _Seen]] = {}
        self.owners: dict[str, str] = {}

    def check(self, name: str, function: Function, *, lasting: bool) -> None:
        """Note that ``function``, which was given no name, has the namespace ``name``: its module and qualified name.

        A ``lasting`` function is kept, as decorated ones are. It can close over other objects than an earlier function that is
        gone. A test, for example, makes its application again with a new connection.

        Raises:
            ValueError: another function has that namespace.
        """
        if isinstance(function, MethodType):
            owner = function.__self__
            self.check_owner(name, owner if isinstance(owner, type) else type(owner))
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not isinstance(function, FunctionType):
            return
        kept = None if lasting else _values(function)
        mine = _Seen(function.__code__, ref(function), kept, function.__globals__.get("__spec__"))
        for peer in self._living():
            for first in list(peer.functions.get(name, {}).values()):
                apart = _difference(first, mine)
                if apart is not None:
                    raise ValueError(_refusal(name, apart))
        seen = self.functions.setdefault(name, {})
        if mine.code not in seen or seen[mine.code].values() is None:
            seen[mine.code] = mine

    def check_owner(self, name: str, owner: type) -> None:
        """Note that a method runs for instances of ``owner``; raises ValueError when it also runs for another class."""
        whose = f"{owner.__module__}.{owner.__qualname__}"
        for peer in self._living():
            if peer.owners.get(name, whose) != whose:
                raise ValueError(_refusal(name, _CLASS))
        self.owners[name] = whose

    def class_check(self, name: str, function: Function) -> Callable[[tuple[object, ...]], None] | None:
        """Return a check of the class that a method is called for, by the call's arguments; None for a function."""
        if not _is_method(function):
            return None
        known: type | None = None

        def check(args: tuple[object, ...]) -> None:
            nonlocal known
            if args:
                first = args[0]
                owner = first if isinstance(first, type) else type(first)
                if owner is not known:
                    self.check_owner(name, owner)
                    known = owner

        return check

    def _living(self) -> "list[Namesakes]":
        # valuerefs() copies the list, so another thread can add to it meanwhile
        return [peer for living in self._peers.valuerefs() if (peer := living()) is not None]


_LEDGERS: WeakValueDictionary[str | int, WeakValueDictionary[int, Namesakes]] = WeakValueDictionary()


def _is_method(function: Function) -> bool:
    around = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not around or around.endswith("<locals>") or isinstance(function, MethodType):
        return False
    return next(iter(inspect.signature(function).parameters), None) in {"self", "cls"}


def _difference(first: _Seen, second: _Seen) -> str | None:
    """Return how two functions of one name differ; None if they are one function, or one that was replaced."""
    if first.code is second.code:
        known, mine = first.values(), second.values()
        if known is None or mine is None:
            return None
        name = next((name for name in known if name in mine and not _are_same(known[name], mine[name])), None)
        if name is None or first.kept is not None:
            return name and f"{name!r}, which it closes over or has as a default"
        del known, mine
        apart = f"{name!r}, which it closes over or has as a default"
    else:
        line, file = first.code.co_firstlineno, first.code.co_filename
        if first.run is not second.run or file != second.code.co_filename or line == second.code.co_firstlineno:
            return None
        apart = f"where it is written: line {line} of {file}"
    if first.living() is not None:
        gc.collect()  # rare; a function that only a cycle keeps alive counts as gone
    return None if first.living() is None else apart


def _refusal(name: str, apart: str) -> str:
    return (
        f"{name}: this is the namespace of an earlier function of the same name, which differs in {apart}. They would "
        "share their keys, and one would get the results of the other. Give each a name of its own, as in "
        "name='billing.sms' (for run: once.using(name='billing.sms').run(...)), or both the same name if they are to share "
        "their keys; or pass what differs as an argument"
    )
