"""What a store can do beyond the register. It is asked for here, and never by ``isinstance``.

A store names what it can do in its ``capabilities``: for each name a function, as ``"module:function"``. The function is
imported when somebody asks for it. Its first argument is the store::

    parts = PROVISION.needed(store)(frozenset())  # TypeError when the store has nothing to make
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from importlib import import_module
from typing import Final, Generic, Protocol, TypeVar, cast

from onceward.core.drivers import Steps, Transport
from onceward.core.steps import Commit
from onceward.observe.events import StoreRequest
from onceward.stores import offering
from onceward.stores.contract import Part, Store
from onceward.stores.inspection import Inspected

C = TypeVar("C", bound=Callable[..., object])


class Capability(Generic[C]):
    """One thing that some stores can do.

    Args:
        name: how a store names it.
        does: what it does, for messages, as in "commit other writes together with a record".
    """

    def __init__(self, name: str, does: str) -> None:
        self.name = name
        self._does = does

    def of(self, store: Store) -> C | None:
        """Return what does it for ``store``, or None when that store cannot do it."""
        where = store.capabilities.get(self.name)
        if where is None:
            return None
        module, _, function = where.partition(":")
        return cast("C", partial(getattr(import_module(module), function), store))

    def needed(self, store: Store) -> C:
        """Return what does it for ``store``.

        Raises:
            TypeError: that store cannot do it. The message names the stores that can.
        """
        found = self.of(store)
        if found is None:
            others = ", ".join(offering(self.name)) or "none is installed"
            raise TypeError(f"{store.url} cannot {self._does}. Use a store that can: {others}")
        return found


class Session(Transport, Protocol):
    """The caller's own connection: records are written in the transaction that is open on it.

    Each method raises StoreError when the database refuses.
    """

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""

    def begin(self) -> None:
        """Begin a transaction in which nobody else can change the key."""

    def mark(self) -> None:
        """Set the savepoint that :meth:`unmark` looks for."""

    def unmark(self) -> bool:
        """Release the savepoint. Return False if it is gone: the transaction in which it was set has ended."""

    def commit(self) -> None:
        """Commit."""

    def rollback(self) -> None:
        """Roll back."""


# Called with a connection: returns its session. ValueError: the connection is not one for this ledger.
TRANSACTION: Final[Capability[Callable[[object], Session]]] = Capability(
    "transaction", "commit a transaction of yours together with a record"
)

# Called with the writes, in the form that the store's own client takes: returns the conditional write that takes them
# along. ValueError or TypeError: a write has not that form.
TRANSACT: Final[Capability[Callable[[Sequence[object]], Commit]]] = Capability(
    "transact", "commit other writes together with a record"
)

# Called with options of `onceward init`: makes the ledger, and returns its parts. ValueError: an option means nothing here.
PROVISION: Final[Capability[Callable[[AbstractSet[str]], Steps[list[Part]]]]] = Capability(
    "provision", "be made ahead of its first use"
)

# Called with a format and options of `onceward init`: returns the text that makes the ledger with another tool.
# ValueError: there is no such format, or an option means nothing here.
TEMPLATE: Final[Capability[Callable[[str, AbstractSet[str]], str]]] = Capability(
    "template", "print how it is made by another tool"
)

# Brings a ledger of an earlier version up to this one, and returns what was changed and what was right already.
MIGRATE: Final[Capability[Callable[[], Steps[list[Part]]]]] = Capability("migrate", "be migrated: it has no schema")

# Called with a callable: has it called with each request from now on, in the thread that made it, after its answer has come.
OBSERVE: Final[Capability[Callable[[Callable[[StoreRequest], object]], None]]] = Capability(
    "observe", "tell of its requests"
)

# Looks at the ledger and returns the facts, for `onceward doctor`. What cannot be read is told by the facts' findings.
INSPECT: Final[Capability[Callable[[], Inspected]]] = Capability("inspect", "be looked at by doctor")

# Tells whether there is a ledger yet, for a store whose first use makes one.
FOUND: Final[Capability[Callable[[], bool]]] = Capability("found", "tell whether it is there")


def check_options(url: str, options: AbstractSet[str], known: AbstractSet[str] = frozenset()) -> None:
    """Raise ValueError when ``options`` has one that means nothing for the ledger at ``url``."""
    for option in sorted(options - known):
        raise ValueError(f"{url}: --{option} means nothing for this ledger; leave it out")
