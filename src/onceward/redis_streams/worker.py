"""A worker for one stream of Redis."""

import os
from collections.abc import Callable
from typing import Final, Unpack

from onceward.consumers.dead_letters import dead_name
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.urls import encoded_url
from onceward.once import Once, check_once
from onceward.redis_streams.broker import RedisStreamsBroker
from onceward.redis_streams.message import StreamEntry

LOCAL: Final = "redis://127.0.0.1:6379/0"


class RedisStreamsWorker(Worker[StreamEntry]):
    """Handles the entries of a stream, each once: ``RedisStreamsWorker(once, "orders", charge, key="order.id").run()``.

    An entry is acknowledged when its effect is recorded, also by an earlier handler. A failed entry comes again after a pause that
    doubles with each receive, and a busy key's entry when the other worker's lease ends. It stays pending in the meantime. The
    entries of a killed worker are claimed by another one. Entries that cannot be handled (a parked key, another input under the
    same key, a malformed entry) go to the dead letters. Their headers say why.

    A server whose settings lose entries is refused at the start. The stream and the group are made then if they are missing.

    Args:
        once: the ledger and the defaults of the policy.
        stream: its name.
        handler: takes the payload: the field ``__data__`` as :func:`onceward.redis_streams.send` writes it, else an object of all
            fields. A plain function is called in threads.
        url: of the server, as ``redis://user:password@host:6379/0``; ``rediss://`` for TLS. By default that of REDIS_URL, else the
            one on this machine.
        group: the consumer group; by default the namespace of the keys. Two handlers must not share one.
        dead: the stream of the dead letters; by default ``STREAM.onceward-dead``.
        idle: seconds after which the entries of a killed worker are claimed. All workers of a group must give the same.
        **options: those of :class:`onceward.consumers.worker.Worker`; the key is by default the header ``Idempotency-Key``, else the
            stream and the entry's id. ``max_attempts`` is 10 by default.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        stream: str,
        handler: Callable[..., object],
        *,
        url: str | None = None,
        group: str | None = None,
        dead: str | None = None,
        idle: float = 60.0,
        **options: Unpack[WorkerOptions],
    ) -> None:
        check_once(once, "RedisStreamsWorker({}, 'orders', charge)")
        where = encoded_url(url or os.environ.get("REDIS_URL") or LOCAL)
        broker = RedisStreamsBroker(where, stream, dead=dead or dead_name(stream), idle=idle)
        super().__init__(once, broker, handler, **options)
        broker.group = group or self._batch.name
