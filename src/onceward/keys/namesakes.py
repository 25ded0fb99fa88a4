"""Refuses two handlers that share a default namespace by accident: the second would get the first one's results.

The default namespace is a function's module and qualified name. Two closures of one factory have the same, and so have a
method that two classes inherit, and two functions that a module calls ``_``. What tells such functions apart is looked at
once, when a function is decorated or first run (closures.py). The calls cost nothing more, but for a decorated method, which
looks whether it has another class than at its last call. Functions that were given a name are not looked at.
"""

import inspect
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from onceward.keys.closures import Seen, called, differing, redefined

if TYPE_CHECKING:
    from onceward.stores.contract import Store

Function = Callable[..., object]

_CLASS: Final = "the class whose method it is"


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
        self._functions: dict[str, dict[int, Seen]] = {}  # by name, and by their code's id
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
        mine = Seen.of(function, lasting=lasting)
        if mine is None:
            return
        for peer in self._living():
            for first in list(peer._functions.get(name, {}).values()):  # noqa: SLF001 - its own kind
                apart = differing(first, mine) if first.code is mine.code else redefined(first, mine)
                if apart is not None:
                    raise ValueError(_refusal(name, apart))
        seen = self._functions.setdefault(name, {})
        first_of_code = seen.get(id(mine.code))
        if first_of_code is None or first_of_code.function() is None:
            seen[id(mine.code)] = mine

    def check_owner(self, name: str, owner: type) -> None:
        """Note that a method runs for instances of ``owner``; raises ValueError when it runs for another class's."""
        whose = called(owner)
        for peer in self._living():
            if peer._owners.get(name, whose) != whose:  # noqa: SLF001 - its own kind
                raise ValueError(_refusal(name, _CLASS))
        self._owners[name] = whose

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


def _is_method(function: Function) -> bool:
    around = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not around or around.endswith("<locals>") or isinstance(function, MethodType):
        return False
    return next(iter(inspect.signature(function).parameters), None) in {"self", "cls"}


def _refusal(name: str, apart: str) -> str:
    return (
        f"{name}: this is the namespace of an earlier function of the same name, which differs in {apart}. They would "
        "share their keys, and one would get the results of the other. Give each a name of its own, as in "
        "name='billing.sms' (for run: once.using(name='billing.sms').run(...)), or both the same name if they are to share "
        "their keys; or pass what differs as an argument"
    )
