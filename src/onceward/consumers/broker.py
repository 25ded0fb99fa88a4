"""What a worker needs of a broker: to receive messages, and to acknowledge, give back or leave each."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from onceward.consumers.delivery import Delivery
from onceward.core.policy import DAY, Policy
from onceward.errors import OncewardError
from onceward.observe.logs import logger

M = TypeVar("M")
DeadLetters = Literal["ledger", "broker", "publish"]
ATTEMPTS: Final = 10  # calls until a key is parked, if neither an option nor the broker limits them


def bounded(policy: Policy) -> Policy:
    """Return the policy with a limit of attempts, so that a message that always fails leaves its queue."""
    return policy if policy.max_attempts is not None else policy._replace(max_attempts=ATTEMPTS)


def tell_outlived(source: str, keeps_for: float | None, policy: Policy) -> None:
    """Warn if messages that are done can come again after the ledger has forgotten their keys.

    Args:
        source: what keeps them, such as "topic orders".
        keeps_for: for how many seconds it keeps a message that is done; None for ever.
        policy: of the worker.
    """
    if policy.retention is None or (keeps_for is not None and keeps_for <= policy.retention):
        return
    keeps = "for ever" if keeps_for is None else f"for {keeps_for / DAY:.3g} days"
    logger().warning(
        "%s keeps messages %s, and the ledger forgets their keys after %.3g days: a consumer that starts from the "
        "beginning runs older ones again. Give retention=%s, or keep messages for less time",
        source,
        keeps,
        policy.retention / DAY,
        "None" if keeps_for is None else f"{keeps_for:.0f}",
    )


def check_settings(what: str, losses: Iterable[str], risks: Iterable[str] = (), *, advice: str = "") -> None:
    """Raise ValueError if a source or its dead letters have settings that lose messages; warn of what can lose some."""
    if reasons := "; ".join(losses):
        raise ValueError(f"{what} loses messages: {reasons}{advice}")
    for text in risks:
        logger().warning("%s: %s", what, text)


class BrokerError(OncewardError):
    """The broker refused a request, or gave no answer. A worker asks again after a pause.

    Cause: No such queue, topic or stream, no permission, a setting that loses messages, or no network.

    Fix: Do what the message says. A worker that runs goes on by itself when the broker is back.

    Attributes:
        gone: whether the queue no longer exists. If so, the worker ends.
    """

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class Broker(ABC, Generic[M]):
    """A queue of messages ``M`` of an at-least-once broker, for :class:`onceward.consumers.worker.Worker`.

    The worker calls all of it in one event loop, where nothing must block, and awaits several :meth:`receive` at once. A client
    that blocks goes into :class:`onceward.consumers.callers.Callers`. After :meth:`receive` the broker holds a message: no other
    consumer receives it until the worker calls :meth:`acknowledge`, :meth:`give_back` or :meth:`leave`, once for each message. A
    message can still come twice. What these calls begin, :meth:`close` waits for.

    Attributes:
        name: of the queue, for logs and errors.
        most: the most messages that one :meth:`receive` returns.
        ordered: whether the messages of one group (``Delivery.group``) are handled in order.
        dead_letters: what becomes of messages that cannot be handled. "ledger": the worker keeps them in the ledger.
            "broker": the broker itself removes what was received too often. "publish": the worker sends them where
            :meth:`dead_letter` says, and then acknowledges them.
        client_errors: what its client raises if the broker is away, or refuses. The worker tells of them by :meth:`explained`.
    """

    name: str
    most = 10
    ordered = False
    dead_letters: DeadLetters = "ledger"
    client_errors: tuple[type[Exception], ...] = ()

    def explained(self, error: Exception) -> BrokerError:
        """Return the error about one of :attr:`client_errors`."""
        return BrokerError(f"{self.name}: {str(error) or type(error).__name__}")

    @abstractmethod
    async def open(self, policy: Policy) -> Policy:
        """Check the queue before any message is received; return the policy for its messages.

        Unless ``dead_letters`` is "broker", this policy must have a ``max_attempts``.

        Raises:
            BrokerError, ValueError: this worker cannot serve the queue. The text says what to do.
        """

    @abstractmethod
    async def receive(self, count: int) -> Sequence[M]:
        """Wait a while for messages, and return up to ``count`` of them; none if the queue is empty.

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

    async def dead_letter(self, message: M, headers: Mapping[str, str]) -> None:
        """Send a message to the dead letters with these headers besides its own; return when the broker has stored it.

        Only for ``dead_letters = "publish"``. The worker acknowledges the message afterwards.

        Raises:
            Exception: it may not be stored. The message is given back.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End what waits in :meth:`receive` soon: the worker was told to stop. What is held is still finished."""

    def kept_text(self, message: M) -> str:
        """Return a message as JSON for the ledger, complete enough to send it again. Only for ``dead_letters = "ledger"``."""
        raise NotImplementedError

    def alike(self, one: str, other: str) -> bool:
        """Return whether two kept texts are of one message."""
        return one == other

    def resend(self, key: str) -> str:
        """Return, for the log, how to send the message again that the ledger keeps under ``key``."""
        return f"send it again as `onceward show {shlex.quote(key)}` prints it, and then `onceward unpark` the key"

    @abstractmethod
    async def close(self) -> None:
        """Send all outstanding requests, and wait until the broker has them."""
