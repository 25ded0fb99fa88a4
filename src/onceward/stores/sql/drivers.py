"""How a driver's connection begins, sends and ends a transaction of its owner. ``session.py`` says when, for all of them.

A method raises the driver's own errors, and each but ``send`` has a limit of time (``lanes/limits.py``). A library around the driver, such as SQLAlchemy, counts as a driver here.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

from onceward.errors import StoreError
from onceward.stores.capabilities import TransactionState
from onceward.stores.lanes.limits import limited

Act = tuple[str, tuple[object, ...]]  # the name of a driver's method, and what it takes


class DriverFailed(StoreError):
    """A driver's method raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def check_idle(state: TransactionState, more: str = "") -> None:
    """Raise ValueError if a connection is closed, or in a transaction."""
    if state is TransactionState.LOST:
        raise ValueError("the connection is closed")
    if state is TransactionState.OPEN:
        raise ValueError(
            f"the connection is in a transaction already; commit it first, because onceward must end the one it begins{more}"
        )


AS_A_SELECT: Final = ". Without autocommit, each statement begins one, also a SELECT"


class CallersDriver(ABC):
    """A connection of the caller's. The acts of one for coroutines return awaitables."""

    awaited = False
    keeps = False  # whether its library keeps statements of the body, which ``send`` sends

    def __init__(self, connection: Any, seconds: float) -> None:
        self.connection = connection
        self.seconds = seconds

    @property
    def raw(self) -> Any:
        """The driver's own connection."""
        return self.connection

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
        getter = getattr(self.raw, "get_autocommit", None)  # of MySQL's drivers
        return bool(getter() if getter else getattr(self.raw, "autocommit", True))

    # --- acts -----------------------------------------------------------------------------------------------------

    def start(self) -> Any:
        """Begin."""
        return None

    def enter(self) -> Any:
        """Use the caller's transaction."""
        return None

    @abstractmethod
    def fetch(self, *asked: Any) -> Any:
        """Run one request's statements, and return their rows."""

    def send(self) -> Any:
        """Send what the body has left unsent."""
        return None

    @abstractmethod
    def finish(self) -> Any:
        """Commit."""

    @abstractmethod
    def undo(self) -> Any:
        """Roll back, whatever the transaction's state, and leave the connection as it was found."""

    def exchange(self, act: Any) -> object:
        """Run one act, whose type is :data:`Act`. Raises :class:`DriverFailed`."""
        name, arguments = act
        try:
            if name == "send":  # its statements are the body's, and can take longer
                return self.send()
            with limited(self.raw, self.seconds):
                return getattr(self, name)(*arguments)
        except Exception as error:
            raise DriverFailed(error) from error

    async def exchange_async(self, act: Any) -> object:
        """As :meth:`exchange`, for a coroutine."""
        name, arguments = act
        try:
            with limited(self.raw, self.seconds):
                reply = getattr(self, name)(*arguments)
                return (await reply) if hasattr(reply, "__await__") else reply
        except Exception as error:
            raise DriverFailed(error) from error
