"""Kafka: a worker for topics, with retry and dead-letter topics, and messages that are sent once.

- ``broker`` has the worker. Its half that reads is in ``reading``; ``topics`` has the three topics, and how a cluster is reached.
- ``redrive`` moves dead letters back; ``target`` is where the outbox and ``send`` send to.

aiokafka is the client, as it works in the worker's own event loop. Install ``onceward[kafka]``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.kafka.broker import KafkaWorker
    from onceward.kafka.redrive import KafkaRedrive
    from onceward.kafka.target import KafkaTarget

__all__ = ["KafkaRedrive", "KafkaTarget", "KafkaWorker", "send", "send_async"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "..consumers.sending": ("send", "send_async"),
        ".redrive": ("KafkaRedrive",),
        ".target": ("KafkaTarget",),
        ".broker": ("KafkaWorker",),
    },
    needs=("aiokafka",),
)
