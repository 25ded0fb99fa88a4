"""Refuses two handlers that share a default namespace by accident: the second would get the first one's results.

The default namespace is a function's module and qualified name. It is the same for two closures of one factory, a method
that two classes inherit, and two functions that a module calls ``_``. Functions are compared once, when one is decorated or
first run (closures.py). Calls cost nothing more; only a decorated method checks whether its class has changed since the last
call. Functions with a given name are not compared.
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
    """The functions of one Once whose namespaces are their own names.

    Every Once on a ledger has one (those made by ``using`` share it), and sees those of the others while they live.

    Args:
        store: the ledger; in memory, each store object is a separate ledger.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store  # kept alive, so that its id stays unique
        key = store.url if "://" in store.url else id(store)
        self._peers = _LEDGERS.setdefault(key, WeakValueDictionary())
        self._peers[id(self)] = self
        self.functions: dict[str, dict[int, Seen]] = {}  # by name, then by the id of their code
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
        mine = Seen.of(function, lasting=lasting)
        if mine is None:
            return
        for peer in self._living():
            for first in list(peer.functions.get(name, {}).values()):
                apart = differing(first, mine) if first.code is mine.code else redefined(first, mine)
                if apart is not None:
                    raise ValueError(_refusal(name, apart))
        seen = self.functions.setdefault(name, {})
        first_of_code = seen.get(id(mine.code))
        if first_of_code is None or first_of_code.function() is None:
            seen[id(mine.code)] = mine

    def check_owner(self, name: str, owner: type) -> None:
        """Note that a method runs for instances of ``owner``; raises ValueError when it also runs for another class."""
        whose = called(owner)
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


def _refusal(name: str, apart: str) -> str:
    return (
        f"{name}: this is the namespace of an earlier function of the same name, which differs in {apart}. They would "
        "share their keys, and one would get the results of the other. Give each a name of its own, as in "
        "name='billing.sms' (for run: once.using(name='billing.sms').run(...)), or both the same name if they are to share "
        "their keys; or pass what differs as an argument"
    )
