"""A worker for one subject of NATS JetStream."""

import os
from collections.abc import Callable, Mapping
from typing import Final, Unpack

from nats.aio.client import Client
from nats.aio.msg import Msg

from onceward.consumers.dead_letters import dead_name
from onceward.consumers.settings import library_settings
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.urls import encoded_url
from onceward.nats.broker import NatsBroker
from onceward.once import Once, check_once

LOCAL: Final = "nats://127.0.0.1:4222"


class NatsWorker(Worker[Msg]):
    """Handles the messages of a subject, each once: ``NatsWorker(once, "orders.new", charge, key="order.id").run()``.

    A message is acknowledged when its effect is recorded, also by an earlier handler. While its handler runs, JetStream is told so. A
    failed message comes again after a pause that doubles with each delivery, and a busy key's message when the other worker's
    lease ends. Messages that cannot be handled (a parked key, another input under the same key, a malformed message) go to the dead
    letters. Their headers say why.

    A stream or a consumer whose settings lose messages is refused at the start. The durable consumer, and a stream for the dead
    letters, are made then if they are missing.

    Args:
        once: the ledger and the defaults of the policy.
        subject: of a stream, which must be there. It may have wildcards; then give ``dead=``.
        handler: takes the payload. A plain function is called in threads.
        url: of the server, as ``nats://user:password@host:4222``; several with commas. By default that of NATS_URL, else the one on
            this machine.
        stream: its name; by default the one that takes the subject.
        durable: the name of the consumer; by default the namespace of the keys. Two handlers must not share one.
        dead: the subject of the dead letters; by default ``SUBJECT.onceward-dead``.
        settings: more of ``nats.connect``, such as ``{"user_credentials": "shop.creds"}``.
        **options: those of :class:`onceward.consumers.worker.Worker`; the key is by default the header ``Idempotency-Key``, else
            ``Nats-Msg-Id``, else the message's place in its stream. ``max_attempts`` is 10 by default.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        subject: str,
        handler: Callable[..., object],
        *,
        url: str | None = None,
        stream: str | None = None,
        durable: str | None = None,
        dead: str | None = None,
        settings: Mapping[str, object] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        check_once(once, "NatsWorker({}, 'orders.new', charge)")
        where = ",".join(map(encoded_url, (url or os.environ.get("NATS_URL") or LOCAL).split(",")))
        found = library_settings(settings, Client.connect, "nats.connect")
        broker = NatsBroker(where, subject, stream=stream, dead=dead or dead_name(subject), settings=found)
        super().__init__(once, broker, handler, **options)
        broker.durable = durable or self._batch.name
