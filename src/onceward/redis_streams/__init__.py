"""Redis Streams: a worker for a stream, with dead letters, and messages that leave with a record.

``worker`` is over its ``broker``, which has ``scripts`` (what Redis does in one step), ``settings`` (what a server loses), and
``message``. ``target`` is the outbox's. FastStream's handlers of streams are in ``faststream/``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily, required

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.redis_streams.target import RedisStreamTarget
    from onceward.redis_streams.worker import RedisStreamsWorker

__all__ = ["RedisStreamTarget", "RedisStreamsWorker", "send", "send_async"]

required("redis", "Redis", "redis")

__getattr__, __dir__ = lazily(
    __name__,
    {
        "..consumers.sending": ("send", "send_async"),
        ".target": ("RedisStreamTarget",),
        ".worker": ("RedisStreamsWorker",),
    },
)
