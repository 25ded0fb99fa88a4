"""The caller's own connection to the ledger's server: an effect on it commits together with its record.

This file has what all SQL servers and drivers share: a transaction's course, and what a failure means for it. A database adds
how it knows the server and the transaction again (``PostgresSession``, ``MysqlSession``). A driver does the acts (``drivers.py``).
Each request is a generator that yields acts, which ``core/drivers.py`` drives, blocking or awaited. A request that is no statement
of the ledger is the name of the driver's method that does it.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary, WeakSet

from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.record import Record, Reply
from onceward.errors import StoreError
from onceward.lazily import at
from onceward.stores.capabilities import Anew, Ended, TransactionState
from onceward.stores.lanes.refusals import Broken, ServerErrors, lost
from onceward.stores.sql.drivers import Act, CallersDriver, DriverFailed

Acts = Generator[Act, Any, object]
_LIBRARIES: Final = frozenset({"sqlalchemy", "django"})  # which wrap the drivers' errors
_WRAPPERS: Final = {
    "sqlalchemy.Connection": "_sqlalchemy:driver_of",
    "sqlalchemy.Session": "_sqlalchemy:driver_of",
    "sqlalchemy.AsyncConnection": "_sqlalchemy:driver_of",
    "sqlalchemy.AsyncSession": "_sqlalchemy:driver_of",
    "django.BaseDatabaseWrapper": "_django:driver_of",
    "django.ConnectionProxy": "_django:driver_of",
}


# By store: that, and the drivers' connections that are known to be to the ledger's server.
_KNOWN: "WeakKeyDictionary[Any, tuple[Any, WeakSet[object]]]" = WeakKeyDictionary()


class SqlSession(ABC):
    """A connection of the caller, of any driver.

    Attributes:
        known: what the database knows of the ledger for connections of callers.
        faults: the server's errors.
        libraries: the packages whose errors are the drivers'.
    """

    exclusive = False
    faults: ClassVar[ServerErrors]
    libraries: ClassVar[frozenset[str]]

    def __init__(self, store: Any, driver: CallersDriver) -> None:
        self.driver = driver
        self.awaited = driver.awaited
        self.store = store
        self.statements: Any = None
        self.trouble: StoreError | None = None  # the first, which made the transaction fail
        self.ending = False  # whether the next swap is the completion
        self.last: object = None  # that swap, which is sent right before the COMMIT
        self._has_begun = False  # what was open before is none of ours

    # --- by each database -----------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def state_of(raw: Any, /) -> TransactionState:
        """Return the state of a driver's connection, without asking the server."""

    @staticmethod
    @abstractmethod
    def code_of(error: BaseException | None, /) -> str:
        """Return the server's code of a driver's error; "" if it has none."""

    @abstractmethod
    def learn(self) -> Steps[Any]:
        """Make the ledger if it is not there, and return what is known of it."""

    @abstractmethod
    def check_place(self) -> Steps[None]:
        """Raise ValueError if the connection is not to the ledger's server, or cannot be used."""

    @abstractmethod
    def began_here(self) -> Steps[bool]:
        """Return False if the open transaction is not the one that began here."""

    @abstractmethod
    def talk(self, request: object) -> Acts:
        """Do one request of the ledger's, and return its reply."""

    # --- the session ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> TransactionState:
        if not self._has_begun:
            return TransactionState.ENDED
        return self.driver.known_state() or self.state_of(self.driver.raw)

    def begin(self) -> Steps[None]:
        self.driver.check()
        yield from self._prepare()
        self._has_begun, self.trouble, self.ending, self.last = True, None, False, None
        yield "start"
        yield from self._check_place()

    def attach(self) -> Steps[None]:
        yield from self._prepare()
        yield "enter"
        if self.state_of(self.driver.raw) is not TransactionState.OPEN and self.driver.commits_alone():
            raise ValueError("the connection is in no transaction, and commits each statement: begin one first")
        yield from self._check_place()

    def _prepare(self) -> Steps[None]:
        if self.store not in _KNOWN:
            _KNOWN[self.store] = (yield from self.learn()), WeakSet()
        self.statements, _ = _KNOWN[self.store]

    def _check_place(self) -> Steps[None]:
        _, same = _KNOWN[self.store]
        if self.driver.raw not in same:
            yield from self.check_place()
            same.add(self.driver.raw)

    def flush(self) -> Steps[None]:
        if self.driver.keeps:
            yield "send"
        self.ending = True

    def commit(self) -> Steps[Record | None]:
        """Send the completion, if there is one, and commit. Return the completed record."""
        record: Record | None = None
        if self.last is not None:
            reply = None if self.state is TransactionState.ENDED else (yield self.last)
            if reply is None or not reply.won:
                raise Ended("the transaction that made the claim is over")
            record = reply.record
        yield "finish"
        return record

    def rollback(self) -> Steps[None]:
        if self._has_begun:
            yield "undo"

    def cut(self) -> None:
        self.driver.cut()

    def exchange(self, request: object) -> object:
        return drive(self._run(request), self.driver)

    async def exchange_async(self, request: object) -> object:
        return await drive_async(self._run(request), self.driver)

    def _run(self, request: object) -> Steps[object]:
        turn = request if isinstance(request, str) else ""
        try:
            if not turn:
                return (yield from self._perform(request))
            reply = yield turn, ()
        except DriverFailed as failed:
            error = failed.error
        else:
            if turn in {"finish", "undo"}:
                self._has_begun = False  # the connection can be somebody else's now
            return reply
        if turn == "send":  # which is the body's
            raise error
        raise self._translated(error, turn) from error

    def _perform(self, request: Any) -> Acts:
        """Do one request of the ledger's, or keep it for the COMMIT."""
        if self.trouble is not None:  # the transaction has failed, and this would hide why
            raise self.trouble
        if self.ending and request.kind == "swap" and request is not self.last:
            self.last = request
            return Reply(True, request.write.at(0.0), 0.0)
        return (yield from self.talk(request))

    def _translated(self, error: Exception, turn: str) -> StoreError:
        """Return the error for one of the driver, or raise it again if it is somebody else's."""
        if turn == "undo":
            self.cut()  # then the server rolls back
        if isinstance(error, StoreError):
            raise error
        roots = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        if not isinstance(error, (OSError, Broken)) and roots.isdisjoint(self.libraries | _LIBRARIES):
            raise error
        code = "" if isinstance(error, Broken) else self.code_of(error)
        url = self.store.url
        trouble = self.faults.error_of(code, str(error), url) if code else lost(str(error), url)
        if code in self.faults.anew and self.driver.started_anew():
            trouble = Anew(str(trouble))
        elif code != self.faults.locked:
            trouble = StoreError(str(trouble))  # the transaction has failed, so the same request cannot succeed
        trouble.__cause__ = error
        self.trouble = self.trouble or trouble
        return trouble


def driver_of(room: str, kinds: dict[str, str], connection: object, seconds: float, choices: str) -> Any:
    """Return the driver of a connection. Beside the module ``room``, each library around a driver has one with a ``driver_of``.

    ``kinds``: by the class of a driver's connection, with its package, how the module ends and what makes its driver.

    Raises:
        TypeError: it is none of these.
    """
    for kind in type(connection).__mro__:
        where = (_WRAPPERS | kinds).get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        if where is not None:
            return at(f"{room}{where}")(connection, seconds)
    raise TypeError(f"{type(connection).__name__}: give {choices}")
