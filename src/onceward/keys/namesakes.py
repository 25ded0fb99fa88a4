"""Refuses two handlers that share a default namespace by accident: the second would get the first one's results.

The default namespace is a function's module and qualified name. It is the same for two closures of one factory, a method
that two classes inherit, and two functions that a module calls ``_``. Functions are looked at once, when one is decorated or
first run. Calls cost nothing more; only a decorated method checks whether its class has changed since the last call. Functions
with a given name are left alone.
"""

import gc
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary, ref

Function = Callable[..., object]

_CLASS: Final = "the class whose method it is"


class _Seen(NamedTuple):
    """A function, or what it wraps: its code and that of what it wraps, itself while it lives, and what makes it differ from others of its code.

    ``contents`` are the names of what it closes over and of its defaults. ``run`` identifies the run of its module:
    importlib.reload() makes a new one.
    """

    codes: tuple[CodeType, ...]
    function: Callable[[], FunctionType | None]
    contents: tuple[str, ...]
    run: object

    @staticmethod
    def of(function: object) -> "_Seen | None":
        """Look at a function; None for what is not made of functions."""
        chain: list[FunctionType] = []
        function = getattr(function, "__func__", function)
        while function is not None:
            if isinstance(function, FunctionType):
                chain.append(function)
            function = getattr(function, "__wrapped__", None)
        if not chain:
            return None
        contents = tuple(name for one in chain for name in _contents(one))
        return _Seen(
            tuple(one.__code__ for one in chain), ref(chain[0]), contents, chain[0].__globals__.get("__spec__")
        )


def _contents(function: FunctionType) -> list[str]:
    code = function.__code__
    defaults = code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount]
    own = function.__name__  # one that calls itself closes over itself
    return [*(name for name in code.co_freevars if name != own), *defaults, *(function.__kwdefaults__ or ())]


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

    def check(self, name: str, function: Function) -> None:
        """Note that ``function``, which was given no name, has the namespace ``name``: its module and qualified name.

        Raises:
            ValueError: another function has that namespace.
        """
        if isinstance(function, MethodType):
            owner = function.__self__
            self.check_owner(name, owner if isinstance(owner, type) else type(owner))
        mine = _Seen.of(function)
        if mine is None:
            return
        for peer in self._living():
            for first in list(peer.functions.get(name, {}).values()):
                apart = _difference(first, mine)
                if apart is not None:
                    raise ValueError(_refusal(name, apart))
        self.functions.setdefault(name, {}).setdefault(tuple(map(id, mine.codes)), mine)

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
        return f"{second.contents[0]!r}, which it closes over or has as a default" if second.contents else None
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


def _refusal(name: str, apart: str) -> str:
    return (
        f"{name}: this is the namespace of an earlier function of the same name, which can differ in {apart}. They would "
        "share their keys, and one would get the results of the other. Give each a name of its own, as in "
        "name='billing.sms' (for run: once.using(name='billing.sms').run(...)), or both the same name if they are to share "
        "their keys; or pass what differs as an argument"
    )
