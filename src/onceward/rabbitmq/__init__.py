"""RabbitMQ: a worker for a queue, with retries, dead letters and messages that leave with a record.

``broker`` has the worker. ``connection`` publishes with confirms, and reads and declares queues. ``redrive`` sends dead letters
again. ``target`` is the outbox's.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily, required

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.rabbitmq.broker import RabbitWorker
    from onceward.rabbitmq.redrive import RabbitRedrive

__all__ = ["RabbitRedrive", "RabbitWorker", "send", "send_async"]

required("aio_pika", "RabbitMQ", "rabbitmq")

__getattr__, __dir__ = lazily(
    __name__,
    {"..consumers.sending": ("send", "send_async"), ".redrive": ("RabbitRedrive",), ".broker": ("RabbitWorker",)},
)
