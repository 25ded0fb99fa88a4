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
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary, ref

Function = Callable[..., object]

_PLAIN: Final = frozenset(  # by name, because most of these modules need not be loaded
    f"builtins.{name}" for name in ("NoneType", "bool", "bytes", "complex", "ellipsis", "float", "int", "str")
) | {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "decimal.Decimal", "uuid.UUID"}
_CLASS: Final = "the class whose method it is"


class _Seen(NamedTuple):
    """A function, or what it wraps: its code and that of what it wraps, itself while it lives, and what it closes over.

    ``kinds`` are the names of what it closes over and of its defaults, with what is known of each when it is gone. ``values`` returns
    the values, or None when the function is gone. ``run`` identifies the run of its module: importlib.reload() makes a new one.
    """

    codes: tuple[CodeType, ...]
    function: Callable[[], FunctionType | None]
    kinds: dict[str, object]
    values: Callable[[], dict[str, object] | None]
    run: object

    @staticmethod
    def of(function: object, *, lasting: bool) -> "_Seen | None":
        """Look at a function; None for what is not made of functions. A ``lasting`` one leads to its values, so keep none of them."""
        chain: list[FunctionType] = []
        function = getattr(function, "__func__", function)
        while function is not None:
            if isinstance(function, FunctionType):
                chain.append(function)
            function = getattr(function, "__wrapped__", None)
        if not chain:
            return None
        first, values = ref(chain[0]), _values(chain)
        living = [ref(one) for one in chain]
        return _Seen(
            tuple(one.__code__ for one in chain),
            first,
            {name: _kind(value) for name, value in values.items()},
            partial(_living, living) if lasting else partial(_kept, {name: _held(one) for name, one in values.items()}),
            chain[0].__globals__.get("__spec__"),
        )


def _living(functions: "list[ref[FunctionType]]") -> dict[str, object] | None:
    chain = [living for one in functions if (living := one()) is not None]
    return _values(chain) if len(chain) == len(functions) else None


def _held(value: object) -> Callable[[], object]:
    """Return a function that returns a value. It keeps the value alive only if there is no other way."""
    try:
        return ref(value)
    except TypeError:
        return lambda: value


def _kept(values: dict[str, Callable[[], object]]) -> dict[str, object]:
    return {name: held() for name, held in values.items()}


def _values(chain: list[FunctionType]) -> dict[str, object]:
    """Return what functions close over, and their defaults. One that calls itself closes over itself."""
    found: dict[str, object] = {}
    for function in chain:
        code, given = function.__code__, function.__defaults__ or ()
        found |= dict(zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True))
        found |= function.__kwdefaults__ or {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is not assigned yet
                found[name] = cell.cell_contents
        found.pop(function.__name__, None)
    return found


def _kind(value: object) -> object:
    """Return what is known of a value when it is gone: all of a plain one, the code of a function, the class of anything else."""
    name = _called(type(value))
    if name in _PLAIN or isinstance(value, Enum):
        return name, value
    if isinstance(value, FunctionType):
        return value.__code__
    if isinstance(value, type):
        return _called(value)
    if name == "onceward.once.Once":  # two on one ledger are equal
        return name, value.store.url  # type: ignore[attr-defined]  # a Once, whose room is higher
    return name


def _called(thing: type) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _are_equal(one: object, other: object) -> bool:
    kind = _kind(other)
    if one is other or type(kind) is not str or isinstance(one, type):
        return True  # their kinds are equal
    try:
        # Two empty values are equal only until they get content.
        return bool(one) and bool(one == other)
    except Exception:  # a user's __eq__ can raise anything
        return False


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
        self.functions: dict[str, dict[tuple[int, ...], _Seen]] = {}  # by name, then by the ids of their codes
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
        mine = _Seen.of(function, lasting=lasting)
        if mine is None:
            return
        for peer in self._living():
            for first in list(peer.functions.get(name, {}).values()):
                apart = _difference(first, mine)
                if apart is not None:
                    raise ValueError(_refusal(name, apart))
        seen, code = self.functions.setdefault(name, {}), tuple(map(id, mine.codes))
        if code not in seen or seen[code].values() is None:
            seen[code] = mine

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
    """Return how two functions of one name can differ; None if they are one function, or one that was replaced."""
    one, other = first.function(), second.function()
    if one is other:
        return None
    if len(first.codes) == len(second.codes) and all(a is b for a, b in zip(first.codes, second.codes, strict=True)):
        del one, other
        return _changed(first, second)
    if one is None or other is None or first.run is not second.run or one.__globals__ is not other.__globals__:
        return None
    line, file = one.__code__.co_firstlineno, one.__code__.co_filename
    if (line, file) == (other.__code__.co_firstlineno, file) or file != other.__code__.co_filename:
        return None
    # Not in a notebook, where people often redefine functions, nor a function that took another's name by functools.wraps.
    if "__file__" not in one.__globals__ or any(of.__code__.co_qualname != of.__qualname__ for of in (one, other)):
        return None
    del one
    gc.collect()  # rare; a function that only a cycle keeps alive counts as gone
    return None if first.function() is None else f"where it is written: line {line} of {file}"


def _changed(first: _Seen, second: _Seen) -> str | None:
    """Return what two functions of the same code close over that differs; None if nothing does, or the first one is gone."""
    said = "{!r}, which it closes over or has as a default"
    for name in first.kinds.keys() & second.kinds.keys():
        if first.kinds[name] != second.kinds[name]:
            return said.format(name)
    known, mine = first.values(), second.values()
    if known is None or mine is None:
        return None
    differs = next((name for name in known.keys() & mine.keys() if not _are_equal(known[name], mine[name])), None)
    if differs is None:
        return None
    del known, mine
    gc.collect()  # rare; a function that only a cycle keeps alive counts as gone
    return None if first.values() is None else said.format(differs)


def _refusal(name: str, apart: str) -> str:
    return (
        f"{name}: this is the namespace of an earlier function of the same name, which differs in {apart}. They would "
        "share their keys, and one would get the results of the other. Give each a name of its own, as in "
        "name='billing.sms' (for run: once.using(name='billing.sms').run(...)), or both the same name if they are to share "
        "their keys; or pass what differs as an argument"
    )
