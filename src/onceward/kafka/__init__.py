"""Kafka: a worker for topics, with retry and dead-letter topics, and messages that leave with a record.

- ``worker`` runs a topic over its ``broker``: ``partitions`` (what is done of each), ``topics`` (the three topics), ``client``
  (how a cluster is reached).
- ``redrive`` moves dead letters back; ``target`` is the outbox's.

aiokafka is the client, as it works in the worker's own event loop. Install ``onceward[kafka]``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.kafka.broker import KafkaWorker
    from onceward.kafka.redrive import KafkaRedrive
    from onceward.kafka.target import KafkaTarget

__all__ = ["KafkaRedrive", "KafkaTarget", "KafkaWorker"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".redrive": ("KafkaRedrive",),
        ".target": ("KafkaTarget",),
        ".broker": ("KafkaWorker",),
    },
    needs=("aiokafka",),
)
