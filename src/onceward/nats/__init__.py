"""NATS JetStream: a worker for a subject, with dead letters, and messages that leave with a record.

``broker`` has the worker. ``target`` is the outbox's. FastStream's handlers of NATS are in ``faststream/``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily, required

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.nats.broker import NatsWorker
    from onceward.nats.target import NatsTarget

__all__ = ["NatsTarget", "NatsWorker", "send", "send_async"]

required("nats", "NATS", "nats")

__getattr__, __dir__ = lazily(
    __name__, {"..consumers.sending": ("send", "send_async"), ".target": ("NatsTarget",), ".broker": ("NatsWorker",)}
)
