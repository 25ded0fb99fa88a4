"""What a worker needs of a broker: to receive messages, and to acknowledge, give back or leave each."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from onceward.consumers.delivery import Delivery
from onceward.core.policy import Policy
from onceward.errors import OncewardError

M = TypeVar("M")


class BrokerError(OncewardError):
    """The broker refused a request, or gave no answer. A worker asks again after a pause.

    Attributes:
        gone: whether the queue no longer exists. If so, the worker ends.
    """

    gone = False


class Broker(ABC, Generic[M]):
    """A queue of messages ``M`` of an at-least-once broker, for :class:`onceward.consumers.worker.Worker`.

    The worker calls :meth:`receive` in several threads at once, and all else in its event loop, where nothing must block. After
    :meth:`receive` the broker holds a message: no other consumer receives it until the worker calls :meth:`acknowledge`,
    :meth:`give_back` or :meth:`leave`. A message can still come twice.

    Attributes:
        name: of the queue, for logs and errors.
        most: the most messages that one :meth:`receive` returns.
        ordered: whether the messages of one group (``Delivery.group``) are handled in order.
        dead_letters: whether the broker itself removes messages that were received too often. If not, the worker keeps them
            in the ledger.
    """

    name: str
    most = 10
    ordered = False
    dead_letters = False

    @abstractmethod
    async def open(self, policy: Policy) -> Policy:
        """Check the queue before any message is received; return the policy for its messages.

        Without dead letters, this policy must have a ``max_attempts``.

        Raises:
            BrokerError, ValueError: this worker cannot serve the queue. The text says what to do.
        """

    @abstractmethod
    def receive(self, count: int) -> Sequence[M]:
        """Wait a while for messages, and return up to ``count`` of them.

        Raises:
            BrokerError: it failed.
        """

    @abstractmethod
    def delivery(self, message: M) -> Delivery:
        """Return a message as a delivery with an ``id``. If it cannot be read, set its ``fault``."""

    @abstractmethod
    def receives(self, message: M) -> int:
        """Return how often a message has been received, including this time."""

    @abstractmethod
    def acknowledge(self, message: M) -> None:
        """Remove a message for good. Its effect, or the message itself, is in the ledger."""

    @abstractmethod
    def give_back(self, message: M, seconds: float = 0.0) -> None:
        """Let a message come again in ``seconds``."""

    @abstractmethod
    def leave(self, message: M) -> None:
        """Hold a message no more. It comes again when the broker's own timeout ends."""

    @abstractmethod
    def kept_text(self, message: M) -> str:
        """Return a message as JSON for the ledger, complete enough to send it again."""

    def alike(self, one: str, other: str) -> bool:
        """Tell whether two kept texts are of one message."""
        return one == other

    def resend(self, key: str) -> str:
        """Return, for the log, how to send the message again that the ledger keeps under ``key``."""
        return f"send it again as `onceward show {shlex.quote(key)}` prints it, and then `onceward unpark` the key"

    @abstractmethod
    async def close(self) -> None:
        """Send all outstanding requests, and wait until the broker has them."""
