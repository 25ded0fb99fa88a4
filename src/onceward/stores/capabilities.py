"""What a store can do beyond the register. Ask here, never with ``isinstance``.

A store's ``capabilities`` map each name to a function, as ``"module:function"``. The function is imported on request and
takes the store as its first argument::

    parts = PROVISION.require(store)(frozenset())  # TypeError when the store has nothing to make
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from onceward.core.drivers import Steps, Transport
from onceward.core.record import Record
from onceward.core.steps import Commit
from onceward.errors import StoreError
from onceward.lazily import at
from onceward.observe.events import StoreRequest
from onceward.stores.contract import Part, Store
from onceward.stores.inspection import Inspected
from onceward.stores.survey import Survey

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
        """Return the function bound to ``store``, or None if that store cannot do it."""
        where = store.capabilities.get(self.name)
        return None if where is None else cast("C", partial(at(where), store))

    def require(self, store: Store) -> C:
        """Return the function bound to ``store``.

        Raises:
            TypeError: that store cannot do it.
        """
        function = self.of(store)
        if function is None:
            raise TypeError(f"{store.url} cannot {self._does}: use a store that can (docs/how-to/choosing-a-ledger.md)")
        return function


class TransactionState(Enum):
    """What the connection of a session knows of the transaction."""

    OPEN = "open"
    ENDED = "not open: somebody has committed it or rolled it back"
    LOST = "unknown: the connection is lost, or is still waiting for a reply"


class Apart(NamedTuple):
    """A request for the store's own connection, in the middle of a transaction's."""

    request: object


class SessionTransport(NamedTuple):
    """Sends requests to a session, and those that are :class:`Apart` to the store."""

    session: Transport
    store: Transport

    def exchange(self, request: object) -> object:
        if type(request) is Apart:
            return self.store.exchange(request.request)
        return self.session.exchange(request)

    async def exchange_async(self, request: object) -> object:
        if type(request) is Apart:
            return await self.store.exchange_async(request.request)
        return await self.session.exchange_async(request)


class AnotherDatabase(ValueError):
    """The caller's connection is to another database than the ledger's, so no record can join its transaction."""


class Anew(StoreError):
    """The database has refused a transaction before its body, because of another one. Begin it anew."""


class Ended(StoreError):
    """The transaction that began here is over, and another one may be open: the body has ended it."""


class Session(Transport, Protocol):
    """The caller's connection: records join its transaction.

    Its verbs are generators of its own requests, as a store's are. They, and an exchange, raise StoreError if the database
    refuses: a transient one only if the same request can be repeated in the same transaction.

    Attributes:
        awaited: whether the connection is used by coroutines.
        exclusive: whether its transaction keeps everybody from every key of the ledger, not only from its own.
    """

    awaited: bool
    exclusive: bool

    @property
    def state(self) -> TransactionState:
        """Whether a transaction is open. It asks nobody."""

    def begin(self) -> Steps[None]:
        """Begin a transaction. ValueError: the connection is in one, or elsewhere."""

    def attach(self) -> Steps[None]:
        """Use the transaction that the caller has open, and will end. ValueError: none is open, or it is elsewhere."""

    def began_here(self) -> Steps[bool]:
        """Return False if the open transaction is not the one that began here. It can undo what was written."""

    def flush(self) -> Steps[None]:
        """Send what the body has left unsent. What that raises is the body's own error. The completion and the COMMIT follow."""

    def commit(self) -> Steps[Record | None]:
        """Commit. Return the completed record, if its swap was kept for the COMMIT.

        Raises :class:`Ended`, and commits nothing, if it is not the transaction that began here.
        """

    def rollback(self) -> Steps[None]:
        """Roll back if a transaction is open, and leave the connection as it was found, whoever has ended it."""

    def cut(self) -> None:
        """End the transaction without awaiting anything: by closing the connection, if it is awaited."""


# Takes a connection, returns its session. ValueError: the connection does not fit this ledger.
TRANSACTION: Final[Capability[Callable[[object], Session]]] = Capability(
    "transaction", "commit a transaction of yours together with a record"
)

# Takes the writes, in the form of the store's own client. Returns the conditional write that includes them. ValueError or
# TypeError: a write has another form.
TRANSACT: Final[Capability[Callable[[Sequence[object]], Commit]]] = Capability(
    "transact", "commit other writes together with a record"
)

# Takes options of `onceward init`, makes the ledger, returns its parts. ValueError: an option does not apply here.
PROVISION: Final[Capability[Callable[[AbstractSet[str]], Steps[list[Part]]]]] = Capability(
    "provision", "be made ahead of its first use"
)


class TableSpec(NamedTuple):
    """What `onceward init --print` was asked for, of a ledger in AWS."""

    options: AbstractSet[str] = frozenset()
    kms_key: str | None = None  # the ARN of a key that encrypts it


# Returns a CloudFormation document that makes the ledger, as JSON values. `onceward.aws.templates` prints it for each tool.
# ValueError: an option does not apply here.
DOCUMENT: Final[Capability[Callable[[TableSpec], dict[str, Any]]]] = Capability("document", "be made by CloudFormation")

# Returns the SQL that makes the ledger.
TEMPLATE: Final[Capability[Callable[[], str]]] = Capability("template", "print the SQL that makes it")

# Checks that the ledger can find what is due by an index (``DueWithin``): one of any size then answers as fast. StoreError: it
# cannot, and the message says how to make it. A store without this capability never keeps messages.
OUTBOX: Final[Capability[Callable[[], Steps[None]]]] = Capability("outbox", "send messages with a record")

# Tells what the ledger holds in bounded time, however large it is.
SURVEY: Final[Capability[Callable[[], Steps[Survey]]]] = Capability("survey", "tell what it holds without reading it")

# Migrates a ledger of an earlier version. Returns what was changed and what was already right.
MIGRATE: Final[Capability[Callable[[], Steps[list[Part]]]]] = Capability("migrate", "be migrated: it has no schema")

# Takes a callable. From now on calls it with each request, after the answer, in the request's thread.
OBSERVE: Final[Capability[Callable[[Callable[[StoreRequest], object]], None]]] = Capability(
    "observe", "tell of its requests"
)

# Returns the facts about the ledger, for `onceward doctor`. Their findings say what could not be read.
INSPECT: Final[Capability[Callable[[], Inspected]]] = Capability("inspect", "be looked at by doctor")

# Returns whether the ledger exists yet, for a store that makes one on first use.
EXISTS: Final[Capability[Callable[[], bool]]] = Capability("exists", "tell whether it is there")


def check_options(url: str, options: AbstractSet[str], valid: AbstractSet[str] = frozenset()) -> None:
    """Raise ValueError if ``options`` has one that does not apply to the ledger at ``url``."""
    for option in sorted(options - valid):
        raise ValueError(f"{url}: --{option} means nothing for this ledger; leave it out")
