"""A message that follows another, such as its retry, is sent before the other one is acknowledged.

Dramatiq's middleware sends retries, the next actors of pipelines, and callbacks. Dramatiq swallows the error if the broker is away just
then, and acknowledges the message all the same: its retry would be lost. This middleware sends it again first.
"""

from threading import local
from typing import TYPE_CHECKING

from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import Middleware, MiddlewareError

from onceward.dramatiq.consuming import comes_again
from onceward.observe.logs import logger

if TYPE_CHECKING:
    from dramatiq import Broker, Message
    from dramatiq.broker import MessageProxy


class _NotSentError(MiddlewareError, ConnectionClosed):
    """The message must not be acknowledged yet.

    Only a ``MiddlewareError`` passes Dramatiq's signals. As a lost connection, it lets Dramatiq wait and try the acknowledgement again.
    """


class _Following(local):
    """What follows the message that this thread handles.

    Attributes:
        owed: what could not be sent yet, by its id; None while the actor itself runs, whose own messages are its own affair.
        tried: the ids of all.
    """

    def __init__(self) -> None:
        self.owed: dict[str, Message[object]] | None = None
        self.tried: set[str] = set()


class Resending(Middleware):
    """Dramatiq's middleware that sends again what could not be sent. It must stand first, so that it is told last."""

    def __init__(self) -> None:
        self._following = _Following()

    def begin(self) -> None:
        """The actor of this thread's message has ended; from now on, Dramatiq's middleware sends."""
        self._following.owed, self._following.tried = {}, set()

    def before_enqueue(self, broker: "Broker", message: "Message[object]", delay: int) -> None:
        """Remember what is about to be sent."""
        del broker, delay  # the delay is in the message already, as its queue and eta
        if self._following.owed is not None:
            self._following.owed[message.message_id] = message
            self._following.tried.add(message.message_id)

    def after_enqueue(self, broker: "Broker", message: "Message[object]", delay: int) -> None:
        """Forget what the broker has."""
        del broker, delay
        if self._following.owed is not None:
            self._following.owed.pop(message.message_id, None)

    def after_process_message(
        self,
        broker: "Broker",
        message: "MessageProxy",
        *,
        result: object = None,
        exception: BaseException | None = None,
    ) -> None:
        """Send a failed message to the dead letters if its retry was not even tried, such as when ``retry_when`` raised."""
        del broker, result
        following = self._following
        if exception is None or message.failed or following.owed is None or message.message_id in following.tried:
            return
        logger().error("%s goes to the dead letters: Dramatiq could not decide about its retry", message.message_id)
        message.fail()

    def before_ack(self, broker: "Broker", message: "MessageProxy") -> None:
        """Send what is owed. If that fails, Dramatiq comes again in 5 seconds.

        A message that RabbitMQ delivers once more owes nothing: what follows it is sent then, and this thread need not wait for RabbitMQ.
        """
        owed = self._following.owed or {}
        if owed and comes_again(message):
            owed = {}
        for other in list(owed.values()):
            try:
                broker.enqueue(other)
            except Exception as error:
                if _is_hopeless(other, error):
                    logger().error(
                        "%s, which follows %s, cannot be sent: %s", other.message_id, message.message_id, error
                    )
                    del owed[other.message_id]
                    if other.message_id != message.message_id:
                        continue
                    message.fail()  # when Dramatiq comes again, the message goes to the dead letters
                raise _not_sent(message, error) from error
        self._following.owed = None

    before_nack = before_ack


def _not_sent(message: "MessageProxy", error: Exception) -> _NotSentError:
    return _NotSentError(f"what follows {message.message_id} was not sent: {error}")  # type: ignore[no-untyped-call]


def _is_hopeless(message: "Message[object]", error: Exception) -> bool:
    """Return whether a message cannot be sent, even if the broker is there."""
    if isinstance(error, MiddlewareError):
        return True  # another middleware does not want it
    try:
        message.encode()
    except Exception:  # whatever the encoder raises
        return True
    return False
