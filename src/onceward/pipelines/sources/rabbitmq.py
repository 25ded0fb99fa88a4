"""The source ``rabbitmq``."""

from typing import Annotated, ClassVar

from msgspec import Meta

from onceward.pipelines.sources.brokers import WorkerSource


class RabbitmqSource(WorkerSource, kw_only=True):
    """A queue of RabbitMQ. A message's own key is its header Idempotency-Key, else its message id."""

    queue: Annotated[str, Meta(description="Its name. It must be there, as a durable quorum queue.", min_length=1)]
    url: Annotated[
        str | None,
        Meta(description="amqp://user:password@host/vhost, or amqps:// for TLS. By default that of AMQP_URL."),
    ] = None
    dead: Annotated[
        str | bool,
        Meta(
            description="The dead-letter queue. By default QUEUE.onceward-dead. With false the ledger keeps messages."
        ),
    ] = True
    prefetch: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)] | None,
        Meta(description="Messages that RabbitMQ hands over at a time. By default twice the concurrency."),
    ] = None
    wait: Annotated[float, Meta(description="Seconds after which an empty queue is looked at again.", gt=0, le=60)] = 2

    worker: ClassVar[str] = "onceward.rabbitmq.worker:RabbitWorker"
    library: ClassVar[tuple[str, str] | None] = ("aio_pika", "rabbitmq")
