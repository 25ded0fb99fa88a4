"""A worker for one Kafka topic."""

from collections.abc import Callable, Mapping
from typing import Unpack

from onceward.consumers.worker import Worker, WorkerOptions
from onceward.kafka.broker import KafkaBroker
from onceward.kafka.client import consumer_settings
from onceward.kafka.partitions import KafkaMessage
from onceward.kafka.topics import Topics
from onceward.once import Once, check_once


class KafkaWorker(Worker[KafkaMessage]):
    """Handles the records of a topic, each once: ``KafkaWorker(once, "orders", charge, key="order.id").run()``.

    A record's offset is committed when its effect and those of all records before it are recorded, so a killed worker loses none. A
    record that failed, or whose key is busy, goes to the retry topic, and its partition goes on; it comes again after a pause. With
    ``order=True`` its partition waits for it instead. Records that cannot be handled (a parked key, another input under the same
    key, a malformed value) go to the dead-letter topic with the reason in their headers.

    Args:
        once: the ledger and the defaults of the policy.
        topic: its name.
        handler: takes the value: decoded JSON, None for a tombstone. A plain function is called in threads.
        servers: ``host:port,host:port``; by default those of KAFKA_SERVERS, else localhost:9092.
        group: the consumer group; by default the namespace of the keys. Two handlers must not share one.
        order: whether the records of a partition are handled in order, one after the other.
        retry: the retry topic; by default ``TOPIC.onceward-retry``. It is made if it is missing, as is the next.
        dead: the dead-letter topic; by default ``TOPIC.onceward-dead``.
        settings: more settings of aiokafka's consumer, such as ``{"session_timeout_ms": 30_000, "group_instance_id": "w-1"}``.
        **options: those of :class:`onceward.consumers.worker.Worker`. ``max_attempts`` is 10 by default. The key is the header
            ``Idempotency-Key`` by default, or else the topic, partition, offset and timestamp. A producer that sends twice
            makes two offsets, so give ``key=``, a path over the value.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        topic: str,
        handler: Callable[..., object],
        *,
        servers: str | None = None,
        group: str | None = None,
        order: bool = False,
        retry: str | None = None,
        dead: str | None = None,
        settings: Mapping[str, object] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        check_once(once, "KafkaWorker({}, 'orders', charge)")
        broker = KafkaBroker(
            Topics(topic, retry, dead), servers=servers, order=order, settings=consumer_settings(settings)
        )
        super().__init__(once, broker, handler, **options)
        broker.group = group or self._batch.name
