"""Refuses two handlers that share a default namespace by accident: the second would get the first one's results.

The default namespace is a function's module and qualified name. Two closures of one factory have the same, and so have a
method that two classes inherit, and two functions that a module calls ``_``. What tells such functions apart is looked at once, when a function is decorated or first
run. The calls cost nothing more, but for a decorated method, which looks whether it has another class than at its last call.
Functions that were given a name are not looked at.
"""

import gc
import inspect
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary, ref

if TYPE_CHECKING:
    from onceward.stores.contract import Store

Function = Callable[..., object]
Find = Callable[[], object]

_DEEPEST: Final = 3  # functions within functions that are looked at
_CLASS: Final = "the class whose method it is"
_VALUES: Final = frozenset(  # by name, because most of these modules need not be loaded
    f"builtins.{name}" for name in ("NoneType", "bool", "bytes", "complex", "ellipsis", "float", "int", "str")
) | {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "decimal.Decimal", "uuid.UUID"}


class Namesakes:
    """The functions whose namespaces on one ledger are their own names, as far as one Once has met them.

    Every Once on a ledger has one (those made by ``using`` share it), and sees those of the others while they live.

    Args:
        store: the ledger; what is in a process's memory is another ledger for each store object.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store  # kept, so that nobody else gets its id
        key = store.url if "://" in store.url else id(store)
        self._peers = _LEDGERS.setdefault(key, WeakValueDictionary())
        self._peers[id(self)] = self
        self._functions: dict[str, dict[int, _Seen]] = {}  # by name, and by their code's id
        self._owners: dict[str, str] = {}

    def check(self, name: str, function: Function, *, lasting: bool) -> None:
        """Note that ``function`` has the namespace ``name``.

        Args:
            name: its module and qualified name.
            function: the handler, without a name of its own choice.
            lasting: it is kept, as decorated ones are. Then objects that it closes over may be others than those of an
                earlier function that is gone: a test, say, makes its application anew, with a new connection.

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
            for first in list(peer._functions.get(name, {}).values()):  # noqa: SLF001 - its own kind
                differing = _differing(first, mine) if first.code is mine.code else _redefined(first, mine)
                if differing is not None:
                    raise ValueError(_refusal(name, differing))
        seen = self._functions.setdefault(name, {})
        first_of_code = seen.get(id(mine.code))
        if first_of_code is None or first_of_code.function() is None:
            seen[id(mine.code)] = mine

    def check_owner(self, name: str, owner: type) -> None:
        """Note that a method runs for instances of ``owner``; raises ValueError when it runs for another class's."""
        called = _called(owner)
        for peer in self._living():
            if peer._owners.get(name, called) != called:  # noqa: SLF001 - its own kind
                raise ValueError(_refusal(name, _CLASS))
        self._owners[name] = called

    def class_check(self, name: str, function: Function) -> Callable[[tuple[object, ...]], None] | None:
        """Return what looks at the class that a method is called for, by the arguments of the call; None for a function."""
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
        # valuerefs() makes its list at once, so another thread may add to it meanwhile
        return [peer for living in self._peers.valuerefs() if (peer := living()) is not None]


_LEDGERS: WeakValueDictionary[str | int, WeakValueDictionary[int, Namesakes]] = WeakValueDictionary()


class _Seen(NamedTuple):
    """A function: its code, itself if it still lives, and what it closes over and has for defaults, by name.

    ``run`` is of the run of its module that made it: importlib.reload() gives a module another one.
    """

    code: CodeType
    function: Callable[[], FunctionType | None]
    contents: "dict[str, _Content]"
    lasting: bool
    run: object

    @staticmethod
    def of(function: object, depth: int = 0, *, lasting: bool) -> "_Seen | None":
        """Look at a function; one that is ``lasting`` leads to what it closes over, so nothing of that is kept."""
        function = getattr(function, "__func__", function)
        for _ in range(_DEEPEST):
            if not isinstance(function, FunctionType):  # a functools.lru_cache, say
                function = getattr(function, "__wrapped__", None)
        if not isinstance(function, FunctionType):
            return None
        living = ref(function)
        contents = {}
        for name, value in _contents(function).items():
            find = partial(_found, living, name) if lasting else None
            contents[name] = _Content.of(value, find, depth + 1)
        return _Seen(function.__code__, living, contents, lasting, function.__globals__.get("__spec__"))


class _Content(NamedTuple):
    """One thing that a function closes over.

    Attributes:
        plain: what can be compared although the thing is gone: its class, and its value if that is a plain one.
        get: returns the thing, None when it is gone; or None when ``plain`` says all.
        inner: what it is made of, if it is a function.
    """

    plain: object
    get: Find | None = None
    inner: _Seen | None = None

    @staticmethod
    def of(value: object, find: Find | None, depth: int) -> "_Content":  # noqa: PLR0911 - one line per type
        kind = _called(type(value))
        if kind in _VALUES:
            return _Content((kind, _short(value)))
        if isinstance(value, Enum):
            return _Content((kind, value.name))
        if type(value) is tuple:
            parts = [_Content.of(item, find, depth) for item in value]
            plain = (kind, *(part.plain for part in parts))
            return _Content(plain, _getter(value, find) if any(part.get for part in parts) else None)
        if isinstance(value, type):
            return _Content((kind, _called(value)))
        if isinstance(value, ModuleType):
            return _Content((kind, value.__name__))
        if isinstance(value, FunctionType | MethodType | BuiltinMethodType):
            return _Content.of_function(value, find, depth)
        if kind == "onceward.once.Once":  # two of one ledger are alike
            return _Content((kind, getattr(getattr(value, "store", None), "url", None)))
        return _Content(kind, _getter(value, find))

    @staticmethod
    def of_function(value: FunctionType | MethodType | BuiltinMethodType, find: Find | None, depth: int) -> "_Content":
        bound = getattr(value, "__self__", None)
        inner = _Seen.of(value, depth, lasting=find is not None) if depth <= _DEEPEST else None
        plain = (_called(type(value)), _called(value), _called(type(bound)))
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
        except ValueError:  # it is assigned later
            continue
    return found


def _differing(first: _Seen, second: _Seen) -> str | None:
    """Return the name of something that tells two functions of the same code apart."""
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


def _redefined(first: _Seen, second: _Seen) -> str | None:
    """Return where the first of two functions was written that one run of a module has under one name."""
    if first.run is not second.run or first.code.co_filename != second.code.co_filename:
        return None
    if first.code.co_firstlineno == second.code.co_firstlineno or not _is_of_script_or_module(first, second):
        return None
    return (
        None
        if _is_gone(first)
        else f"where it is written: line {first.code.co_firstlineno} of {first.code.co_filename}"
    )


def _is_of_script_or_module(first: _Seen, second: _Seen) -> bool:
    """Tell whether two functions are of one module, and not of a notebook, where people write a function again and again."""
    one, other = first.function(), second.function()
    if one is None or other is None or one.__globals__ is not other.__globals__ or "__file__" not in one.__globals__:
        return False
    # Else they took the name of another, as functools.wraps does.
    return all(function.__code__.co_qualname == function.__qualname__ for function in (one, other))


def _is_gone(seen: _Seen) -> bool:
    if seen.function() is not None:
        gc.collect()  # rare, and whoever is held by nothing but a cycle is gone
    return seen.function() is None


def _alike(one: _Content, other: _Content) -> bool:
    inner, other_inner = one.inner, other.inner
    if inner is not None and other_inner is not None and inner.code is not other_inner.code:
        return False
    if inner is not None and other_inner is not None and _differing(inner, other_inner) is not None:
        return False
    if one.get is None or other.get is None:
        return True
    first, second = one.get(), other.get()
    if first is second:
        return True
    try:
        # Two that are empty are equal only until something is put into them.
        return bool(first) and bool(first == second)
    except Exception:  # noqa: BLE001 - a user's __eq__ may do anything
        return False


def _found(living: Callable[[], FunctionType | None], name: str) -> object:
    """Return what a function has under a name; None when it is gone."""
    function = living()
    return None if function is None else _contents(function).get(name)


def _getter(value: object, find: Find | None) -> Find | None:
    """Return what returns ``value``; it is kept for that only where there is no other way."""
    if value is None:
        return None
    try:
        return ref(value)
    except TypeError:
        return find or (lambda: value)


def _short(value: object) -> object:
    """Return a plain value, or for a long one what to know it by."""
    return (len(value), hash(value)) if isinstance(value, str | bytes) and len(value) > 100 else value


def _called(thing: object) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def _is_method(function: Function) -> bool:
    around = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not around or around.endswith("<locals>") or isinstance(function, MethodType):
        return False
    return next(iter(inspect.signature(function).parameters), None) in {"self", "cls"}


def _content(name: str) -> str:
    return f"{name!r}, which it closes over or has as a default"


def _refusal(name: str, differing: str) -> str:
    return (
        f"{name}: this is the namespace of an earlier function of the same name, which differs in {differing}. They would "
        "share their keys, and one would get the results of the other. Give each a name of its own, as in "
        "name='billing.sms' (for run: once.using(name='billing.sms').run(...)), or both the same name if they are to share "
        "their keys; or pass what differs as an argument"
    )
