"""A subject of JetStream as a broker: a durable consumer that is pulled, and the subject of the dead letters."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import ConsumerInfo, PubAck, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from onceward.consumers.broker import Broker, BrokerError, bounded, check_settings, tell_outlived
from onceward.consumers.callers import Tasks
from onceward.consumers.dead_letters import KEY_HEADER, dead_name
from onceward.consumers.delivery import Delivery
from onceward.consumers.nats_streams import (
    ACK_WAIT,
    ID_HEADER,
    consumer_of,
    is_queue,
    losses,
    name_for,
    prepare_letters,
    risks,
    store_letter,
    takes,
    unfit,
)
from onceward.consumers.worker import Worker, WorkerOptions, library_settings
from onceward.core.policy import Policy
from onceward.core.urls import encoded_url
from onceward.once import Once


def message_delivery(message: Msg) -> Delivery:
    """Return a message as a delivery. Its default key is the header ``Idempotency-Key``, its ``Nats-Msg-Id``, or its place."""
    there, header = message.metadata, (message.headers or {}).get
    place = f"{there.stream}/{there.sequence.stream}"
    # The time is part of it, because a stream that is made again counts from 1 again.
    stored = f"{place}/{round(there.timestamp.timestamp() * 1e6)}"
    key = header(KEY_HEADER) or header(ID_HEADER) or stored
    return Delivery("nats", message, place, key, None, message.data, header, message.subject)


TROUBLE: Final = (Error, OSError, TimeoutError)  # what nats-py raises when a server is away, or refuses
_WAIT: Final = 1.0  # seconds that one request for messages waits; a stop waits as long
_PATIENCE: Final = 10  # seconds for any other answer
_CONNECTING: Final = {"connect_timeout": _PATIENCE, "max_reconnect_attempts": -1, "ping_interval": 10}
_WILD: Final = re.compile(r"[*>\s]")


class NatsBroker(Broker[Msg]):
    """One durable consumer, for one run of a worker. The arguments are those of :class:`onceward.nats.NatsWorker`.

    Raises:
        ValueError: an argument is not valid.
    """

    most = 100
    dead_letters = "publish"
    client_errors = TROUBLE
    _client: Client
    _jetstream: JetStreamContext
    _pulled: JetStreamContext.PullSubscription
    _letters: str  # the stream of the dead letters

    def __init__(self, url: str, subject: str, *, stream: str | None, dead: str, settings: Mapping[str, Any]) -> None:
        if not dead or _WILD.search(dead):
            raise ValueError(f"dead={dead!r} cannot be a subject for dead letters: give dead= without wildcards")
        if takes(subject, dead):
            raise ValueError(f"this worker would receive its own dead letters, {dead}: give another dead=")
        self.name, self._dead = subject, dead
        self.durable = ""
        self._stream = stream
        self._reach = {"servers": url.split(","), **settings}
        self._pulling = asyncio.Lock()
        self._held: dict[int, Msg] = {}
        self._at_work: asyncio.Task[None] | None = None
        self._stopped = False
        self._tasks = Tasks(*TROUBLE)  # what is not settled comes again, and replays

    async def open(self, policy: Policy) -> Policy:
        self._client = await self._connected()
        self._jetstream = self._client.jetstream(timeout=_PATIENCE)
        try:
            stream, consumer = await self._prepare(policy)
        except BaseException:
            await self._client.close()
            raise
        self._pulled = await self._jetstream.pull_subscribe_bind(consumer=self.durable, stream=stream)
        every = (consumer.config.ack_wait or ACK_WAIT) / 3
        self._at_work = asyncio.create_task(self._tell_at_work(every))
        return bounded(policy)

    async def _connected(self) -> Client:
        """Return a connection that comes back by itself."""
        last: Exception | None = None

        async def failed(error: Exception) -> None:
            nonlocal last
            last = error

        try:
            async with asyncio.timeout(_PATIENCE):
                return await nats.connect(**{**_CONNECTING, "error_cb": failed, **self._reach})
        except ImportError as error:
            raise ValueError(f"settings: {error}: pip install 'nats-py[nkeys]'") from error
        except TROUBLE as error:
            why = error if last is None else last
            text = f"NATS, connecting: {str(why) or type(why).__name__}"
            raise BrokerError(f"{text}. Is it running there, and is NATS_URL right?") from error

    async def _prepare(self, policy: Policy) -> tuple[str, ConsumerInfo]:
        """Check the stream and the consumer; make the consumer and the stream of the dead letters if they are missing."""
        self.durable = name_for(self.durable)
        stream, config = await self._find()
        try:
            consumer = await self._jetstream.consumer_info(stream, self.durable)
        except NotFoundError:
            consumer = None
        check_settings(f"stream {stream}", losses(config, consumer and consumer.config), risks(config))
        if consumer is not None and (why := unfit(consumer.config, self.name)) is not None:
            raise ValueError(f"the consumer {self.durable} of stream {stream} cannot be used here: {why}")
        if not is_queue(config):
            tell_outlived(f"stream {stream}", config.max_age or None, policy)
        if consumer is None:
            consumer = await self._jetstream.add_consumer(stream, consumer_of(self.durable, self.name))
        self._letters = await prepare_letters(self._jetstream, self._dead, config)
        return stream, consumer

    async def _find(self) -> tuple[str, StreamConfig]:
        """Return the stream of the subject."""
        try:
            stream = self._stream or await self._jetstream.find_stream_name_by_subject(self.name)
            return stream, (await self._jetstream.stream_info(stream)).config
        except NotFoundError as error:
            missing = f"there is no stream {self._stream}" if self._stream else f"no stream takes {self.name}"
            raise BrokerError(f"{missing}: make one, with storage=file", gone=True) from error

    async def receive(self, count: int) -> Sequence[Msg]:
        async with self._pulling:  # answers to two requests would get mixed
            while not self._stopped:
                messages = await self._pull(count)
                if messages or not await self._waiting():
                    return messages
        return []

    async def _pull(self, count: int) -> list[Msg]:
        if not self._client.is_connected:
            raise BrokerError(f"subject {self.name}: the connection to NATS is lost")
        try:
            messages = await self._pulled.fetch(count, timeout=_WAIT)
        except TimeoutError:
            return []
        self._held.update((id(message), message) for message in messages)
        return messages

    async def _waiting(self) -> int:
        """Return how many messages have not been delivered yet; some may wait for those that are held."""
        try:
            return (await self._pulled.consumer_info()).num_pending or 0
        except NotFoundError as error:
            raise BrokerError(f"the consumer {self.durable} of subject {self.name} was deleted", gone=True) from error

    async def _tell_at_work(self, every: float) -> None:
        """Tell JetStream of what is held, so that nobody else gets it."""
        while True:
            await asyncio.sleep(every)
            for message in list(self._held.values()):
                with contextlib.suppress(*TROUBLE):  # it may come again then, and replays
                    await message.in_progress()

    def delivery(self, message: Msg) -> Delivery:
        return message_delivery(message)

    def receives(self, message: Msg) -> int:
        return message.metadata.num_delivered

    def acknowledge(self, message: Msg) -> None:
        self._settle(message, message.ack())

    def give_back(self, message: Msg, seconds: float = 0.0) -> None:
        self._settle(message, message.nak(delay=seconds))

    def leave(self, message: Msg) -> None:
        self._held.pop(id(message), None)

    async def dead_letter(self, message: Msg, headers: Mapping[str, str]) -> None:
        room = self._client.max_payload - len(message.data)
        send = partial(self._send_letter, message)
        await store_letter(self._jetstream, send, message, headers, self._dead, room)

    async def _send_letter(self, message: Msg, headers: dict[str, str]) -> PubAck:
        return await self._jetstream.publish(
            self._dead, message.data, timeout=_PATIENCE, stream=self._letters, headers=headers
        )

    def _settle(self, message: Msg, work: Coroutine[object, object, None]) -> None:
        self._held.pop(id(message), None)
        self._tasks.begin(work)

    def stop(self) -> None:
        self._stopped = True

    async def close(self) -> None:
        if self._at_work is not None:
            self._at_work.cancel()
        await self._tasks.end()
        with contextlib.suppress(*TROUBLE):
            await self._client.flush(_PATIENCE)
        with contextlib.suppress(*TROUBLE):
            await self._client.close()


LOCAL: Final = "nats://127.0.0.1:4222"


class NatsWorker(Worker[Msg]):
    """Handles the messages of a subject, each once: ``NatsWorker(once, "orders.new", charge, key="order.id").run()``.

    A message is acknowledged when this handler, or an earlier one, has recorded its effect. While its handler runs, the
    worker tells JetStream that it is in progress. A failed message comes again after a pause that doubles with each
    delivery, and a busy key's message when the other worker's lease ends. Messages that cannot be handled (a parked
    key, another input under the same key, a malformed message) go to the dead letters. Their headers say why.

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
        settings: more options of ``nats.connect``, such as ``{"user_credentials": "shop.creds"}``.
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
        servers = (url or os.environ.get("NATS_URL") or LOCAL).split(",")
        where = ",".join(encoded_url(one if "://" in one else f"nats://{one}") for one in servers)
        client_options = library_settings(settings, Client.connect, "nats.connect")
        broker = NatsBroker(where, subject, stream=stream, dead=dead or dead_name(subject), settings=client_options)
        super().__init__(once, broker, handler, **options)
        broker.durable = durable or self._batch.name
