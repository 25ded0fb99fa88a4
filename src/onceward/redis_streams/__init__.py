"""Redis Streams: a worker for a stream, with dead letters, and messages that leave with a record.

``broker`` has the worker, and what a server loses; ``message`` has the scripts, which Redis runs in one step. ``target`` is the
outbox's. FastStream's handlers of streams are in ``faststream/``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily, required

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.redis_streams.broker import RedisStreamsWorker
    from onceward.redis_streams.target import RedisStreamTarget

__all__ = ["RedisStreamTarget", "RedisStreamsWorker", "send", "send_async"]

required("redis", "Redis", "redis")

__getattr__, __dir__ = lazily(
    __name__,
    {
        "..consumers.sending": ("send", "send_async"),
        ".target": ("RedisStreamTarget",),
        ".broker": ("RedisStreamsWorker",),
    },
)
