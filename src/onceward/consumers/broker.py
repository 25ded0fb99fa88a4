"""What a broker is to a worker: where messages come from, and what may be said to it of each."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from onceward.errors import OncewardError

if TYPE_CHECKING:
    from onceward.consumers.delivery import Delivery
    from onceward.core.policy import Policy

M = TypeVar("M")


class BrokerError(OncewardError):
    """The broker refused a request, or gave no answer. A worker asks again after a pause.

    Attributes:
        gone: whether there is nothing to ask any more, such as a deleted queue. The worker ends then.
    """

    gone = False


class Broker(ABC, Generic[M]):
    """A queue of messages ``M`` of an at-least-once broker, for :class:`onceward.consumers.worker.Worker`.

    The worker calls :meth:`receive` in threads, several at a time, and all else in its event loop, where nothing may block.
    From :meth:`receive` on the broker holds a message: nobody else receives it until the worker says what becomes of it, by
    :meth:`acknowledge`, :meth:`give_back` or :meth:`leave`. A message may come twice all the same.

    Attributes:
        name: of the queue, for logs and errors.
        most: messages that one :meth:`receive` may bring.
        ordered: whether the messages of one group (``Delivery.group``) are handled in order.
        dead_letters: whether the broker takes away, by itself, what was received too often. If not, the worker keeps such
            messages in the ledger.
    """

    name: str
    most = 10
    ordered = False
    dead_letters = False

    @abstractmethod
    async def open(self, policy: "Policy") -> "Policy":
        """Look at the queue before any message is received; return the policy under which its messages are handled.

        Without dead letters that policy needs a ``max_attempts``.

        Raises:
            BrokerError, ValueError: this worker cannot serve it; the text says what to do.
        """

    @abstractmethod
    def receive(self, count: int) -> Sequence[M]:
        """Wait a while for messages, and return up to ``count`` of them.

        Raises:
            BrokerError: it failed.
        """

    @abstractmethod
    def delivery(self, message: M) -> "Delivery":
        """Return a message as a delivery with an ``id``; what is wrong with it is its ``fault``."""

    @abstractmethod
    def receives(self, message: M) -> int:
        """Return how often a message has been received, with this time."""

    @abstractmethod
    def acknowledge(self, message: M) -> None:
        """Let a message never come again: its effect, or the message itself, is in the ledger."""

    @abstractmethod
    def give_back(self, message: M, seconds: float = 0.0) -> None:
        """Let a message come again in so many seconds."""

    @abstractmethod
    def leave(self, message: M) -> None:
        """Hold a message no more, and let it come again whenever the broker gives up waiting for word of it."""

    @abstractmethod
    def kept_text(self, message: M) -> str:
        """Return a message as JSON that the ledger keeps, and that can be sent again as it was."""

    def alike(self, one: str, other: str) -> bool:
        """Tell whether two kept texts are of one message."""
        return one == other

    def resend(self, key: str) -> str:
        """Return how the message comes again that the ledger keeps under ``key``, for the log."""
        return f"send it again as `onceward show {shlex.quote(key)}` prints it, and then `onceward unpark` the key"

    @abstractmethod
    async def close(self) -> None:
        """Say what is still to be said, and wait until the broker has heard it."""
