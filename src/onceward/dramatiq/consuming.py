"""What Dramatiq's consumers do after a lost connection to RabbitMQ or Redis.

RabbitMQ numbers the messages of each connection from 1. After a reconnection, Dramatiq acknowledges a message of the old connection by
its number on the new one, and so removes another message, which may not have run. If its worker ends then, that message is lost.

On Redis, Dramatiq forgets what it has fetched and not begun, and all delayed messages, but Redis still counts them as that worker's. So
they would wait until it ends.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from threading import local
from typing import TYPE_CHECKING, Any

from dramatiq.broker import Consumer
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import Middleware, MiddlewareError

from onceward.observe.logs import logger

if TYPE_CHECKING:
    from dramatiq import Broker, Message
    from dramatiq.broker import MessageProxy


class _NotSentError(MiddlewareError, ConnectionClosed):
    """The message must not be acknowledged yet.

    Only a ``MiddlewareError`` passes Dramatiq's signals. As a lost connection, it lets Dramatiq wait and try the acknowledgement again.
    """


class Resending(local, Middleware):
    """Dramatiq's middleware that sends again what could not be sent. It must stand first, so that it is told last.

    Each thread has its own attributes, about what follows the message that it handles.

    Attributes:
        owed: what could not be sent yet, by its id; None while the actor itself runs, whose own messages are its own affair.
        tried: the ids of all.
    """

    owed: "dict[str, Message[object]] | None" = None
    tried: Collection[str] = ()

    def begin(self) -> None:
        """The actor of this thread's message has ended; from now on, Dramatiq's middleware sends."""
        self.owed, self.tried = {}, set()

    def before_enqueue(self, broker: "Broker", message: "Message[object]", delay: int) -> None:
        """Remember what is about to be sent."""
        del broker, delay  # the delay is in the message already, as its queue and eta
        if self.owed is not None:
            self.owed[message.message_id] = message
            self.tried = {*self.tried, message.message_id}

    def after_enqueue(self, broker: "Broker", message: "Message[object]", delay: int) -> None:
        """Forget what the broker has."""
        del broker, delay
        if self.owed is not None:
            self.owed.pop(message.message_id, None)

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
        if exception is None or message.failed or self.owed is None or message.message_id in self.tried:
            return
        logger().error("%s goes to the dead letters: Dramatiq could not decide about its retry", message.message_id)
        message.fail()

    def before_ack(self, broker: "Broker", message: "MessageProxy") -> None:
        """Send what is owed. If that fails, Dramatiq comes again in 5 seconds.

        A message that RabbitMQ delivers once more owes nothing: what follows it is sent then, and this thread need not wait for RabbitMQ.
        """
        owed = self.owed or {}
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
                text = f"what follows {message.message_id} was not sent: {error}"
                raise _NotSentError(text) from error  # type: ignore[no-untyped-call]
        self.owed = None

    before_nack = before_ack


def _is_hopeless(message: "Message[object]", error: Exception) -> bool:
    """Return whether a message cannot be sent, even if the broker is there."""
    if isinstance(error, MiddlewareError):
        return True  # another middleware does not want it
    try:
        message.encode()
    except Exception:  # whatever the encoder raises
        return True
    return False


def mend_consumers(broker: "Broker") -> None:
    """Let the consumers of this broker lose and forget nothing, if it is a broker of RabbitMQ or Redis."""
    consume, held = broker.consume, defaultdict[str, set[str]](set)  # by queue
    names = {kind.__name__ for kind in type(broker).__mro__}
    kinds: dict[str, type[_Passed]] = {"RabbitmqBroker": _OwnMessages, "RedisBroker": _TakenUp}
    kind = next((kind for name, kind in kinds.items() if name in names), None)
    if hasattr(consume, "onceward_mends") or kind is None:
        return

    def mended(queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        return kind(
            consume(queue_name=queue_name, prefetch=prefetch, timeout=timeout), broker, queue_name, held[queue_name]
        )

    vars(mended)["onceward_mends"] = True
    broker.consume = mended  # type: ignore[method-assign]  # Dramatiq asks only a broker's class for another consumer


def comes_again(message: "MessageProxy") -> bool:
    """Return whether RabbitMQ delivers a message once more, because its connection was closed. If so, it is not acknowledged."""
    consumer = getattr(message, "onceward_consumer", None)
    if not isinstance(consumer, _OwnMessages) or not consumer.is_closed:
        return False
    message.onceward_consumer = None  # type: ignore[attr-defined]  # so that no consumer acknowledges it
    return True


class _Passed(Consumer):
    """A consumer of one connection, to which all is passed on."""

    def __init__(self, consumer: Consumer, *_: Any) -> None:
        self._consumer = consumer

    def __next__(self) -> "MessageProxy | None":
        message = next(self._consumer)
        if message is not None:
            self.came(message)
        return message

    def came(self, message: "MessageProxy") -> None:
        """Note a message."""
        raise NotImplementedError

    def settle(self, verb: Callable[["MessageProxy"], None], message: "MessageProxy") -> None:
        """Acknowledge a message, or send it to the dead letters."""
        raise NotImplementedError

    def ack(self, message: "MessageProxy") -> None:
        """Acknowledge a message."""
        self.settle(self._consumer.ack, message)

    def nack(self, message: "MessageProxy") -> None:
        """Send a message to the dead letters."""
        self.settle(self._consumer.nack, message)

    def requeue(self, messages: "Iterable[MessageProxy]") -> None:
        """Give messages back."""
        self._consumer.requeue(messages)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class _OwnMessages(_Passed):
    """RabbitMQ's: it settles only its own messages. Those of an ended connection come again by themselves."""

    is_closed = False

    def came(self, message: "MessageProxy") -> None:
        message.onceward_consumer = self  # type: ignore[attr-defined]

    def settle(self, verb: Callable[["MessageProxy"], None], message: "MessageProxy") -> None:
        if message.onceward_consumer is self:
            verb(message)
        else:
            logger().info("%s comes again, because its connection was lost", message.message_id)

    def close(self) -> None:
        self.is_closed = True
        super().close()


class _TakenUp(_Passed):
    """Redis': it begins with what Redis has given to this worker, and what the worker does not have any more."""

    def __init__(self, consumer: Consumer, broker: Any, queue: str, held: set[str]) -> None:
        super().__init__(consumer)
        self._held = held  # what waits for a thread of the worker, or is in one
        if queue in broker.delay_queues:
            held.clear()
        members = broker.client.smembers(f"{broker.namespace}:__acks__.{broker.broker_id}.{queue}")
        names = {name.decode() if isinstance(name, bytes) else name for name in members}
        forgotten = names - held
        if forgotten:
            broker.do_requeue(queue, *forgotten)

    def came(self, message: "MessageProxy") -> None:
        self._held.add(message.options["redis_message_id"])

    def settle(self, verb: Callable[["MessageProxy"], None], message: "MessageProxy") -> None:
        verb(message)
        self._held.discard(message.options["redis_message_id"])

    def requeue(self, messages: "Iterable[MessageProxy]") -> None:
        try:
            super().requeue(messages)
        except Exception as error:  # the thread of the consumer would end, for good
            logger().warning("messages could not be given back to Redis yet: %s", error)
