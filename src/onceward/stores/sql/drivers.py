"""How a driver's connection begins, sends and ends a transaction of its owner. ``session.py`` says when, for all of them.

A method raises the driver's own errors, and each but ``send`` has a limit of time (``limits.py``). A library around the driver, such as SQLAlchemy, counts as a driver here.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, cast

from onceward.errors import StoreError
from onceward.stores.capabilities import TransactionState
from onceward.stores.sql.limits import limited
from onceward.stores.sql.queries import Ts

Act = tuple[str, tuple[object, ...]]  # the name of a driver's method, and what it takes


class DriverFailed(StoreError):
    """A driver's method raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class CallersDriver(ABC):
    """What both kinds have in common.

    Args:
        connection: the caller's.
        seconds: how long one statement may take.
    """

    awaited: bool

    def __init__(self, connection: Any, seconds: float) -> None:
        self.connection = connection
        self.seconds = seconds

    @property
    def raw(self) -> Any:
        """The driver's own connection."""
        return self.connection

    @abstractmethod
    def exchange(self, act: object) -> object:
        """Run one act, whose type is :data:`Act`. Raises :class:`DriverFailed`."""

    @abstractmethod
    async def exchange_async(self, act: object) -> object:
        """As :meth:`exchange`, for a coroutine."""

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""

    @abstractmethod
    def cut(self) -> None:
        """End the transaction by closing the connection."""

    def known_state(self) -> TransactionState | None:
        """Return the state, if a library knows it better than the driver's own connection."""
        return None

    def started_anew(self) -> bool:
        """Return whether the transaction has seen nothing before us, so that it can begin anew."""
        return True

    def commits_alone(self) -> bool:
        """Return whether a statement outside of a transaction is committed at once. Else it begins one."""
        asked = getattr(self.raw, "get_autocommit", None)  # of MySQL's drivers
        return bool(asked() if asked else getattr(self.raw, "autocommit", True))


class BlockingDriver(CallersDriver, Generic[*Ts]):
    """A connection that blocks."""

    awaited = False

    def start(self) -> None:
        """Begin."""

    def enter(self) -> None:
        """Use the caller's transaction."""

    @abstractmethod
    def fetch(self, *asked: *Ts) -> Sequence[Any]:
        """Run one request's statements, and return their rows."""

    def send(self) -> None:
        """Send what the body has left unsent."""

    @abstractmethod
    def finish(self) -> None:
        """Commit."""

    @abstractmethod
    def undo(self) -> None:
        """Roll back, whatever the transaction's state, and leave the connection as it was found."""

    def exchange(self, act: object) -> object:
        """Run one act."""
        name, given = cast("Act", act)
        try:
            if name == "send":  # its statements are the body's, and can take longer
                self.send()
                return None
            with limited(self.raw, self.seconds):
                return getattr(self, name)(*given)
        except Exception as error:
            raise DriverFailed(error) from error

    async def exchange_async(self, act: object) -> object:
        """Refuse: it blocks."""
        raise NotImplementedError("it blocks")


class AwaitedDriver(CallersDriver, Generic[*Ts]):
    """A connection of coroutines. Its methods are those of :class:`BlockingDriver`."""

    awaited = True

    async def start(self) -> None:
        """Begin."""

    async def enter(self) -> None:
        """Use the caller's transaction."""

    @abstractmethod
    async def fetch(self, *asked: *Ts) -> Sequence[Any]:
        """Run one request's statements, and return their rows."""

    async def send(self) -> None:
        """Send what the body has left unsent."""

    @abstractmethod
    async def finish(self) -> None:
        """Commit."""

    @abstractmethod
    async def undo(self) -> None:
        """Roll back, whatever the transaction's state, and leave the connection as it was found."""

    def exchange(self, act: object) -> object:
        """Refuse: it is awaited."""
        raise NotImplementedError("it is awaited")

    async def exchange_async(self, act: object) -> object:
        """Run one act."""
        name, given = cast("Act", act)
        try:
            if name == "send":  # as above
                await self.send()
                return None
            with limited(self.raw, self.seconds):
                return await getattr(self, name)(*given)
        except Exception as error:
            raise DriverFailed(error) from error
