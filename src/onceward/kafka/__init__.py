"""Kafka: a worker for topics, with retry and dead-letter topics, and messages that are sent once.

- ``worker`` runs a topic over its ``broker``: ``partitions`` (what is done of each), ``topics`` (the three topics), ``client``
  (how a cluster is reached).
- ``redrive`` moves dead letters back; ``target`` is where the outbox and ``send`` send to.
- ``doctor`` says which settings of topics lose records.

aiokafka is the client, as it works in the worker's own event loop. Install ``onceward[kafka]``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.kafka.redrive import KafkaRedrive
    from onceward.kafka.target import KafkaTarget
    from onceward.kafka.worker import KafkaWorker

__all__ = ["KafkaRedrive", "KafkaTarget", "KafkaWorker", "send", "send_async"]

_HOMES = {
    "KafkaRedrive": ".redrive",
    "KafkaTarget": ".target",
    "KafkaWorker": ".worker",
    "send": "..consumers.sending",
    "send_async": "..consumers.sending",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value: object = getattr(import_module(_HOMES[name], __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "aiokafka":
            raise
        raise ModuleNotFoundError(
            "onceward.kafka needs aiokafka: pip install 'onceward[kafka]'", name="aiokafka"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
