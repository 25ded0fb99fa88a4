"""Redis Streams: a message that is not done stays pending, and is claimed when it was idle for long enough."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from faststream import AckPolicy
from faststream.exceptions import SetupError
from faststream.redis.message import bDATA_KEY
from faststream.redis.parser import BinaryMessageFormatV1
from redis.asyncio import Redis

from onceward.consumers.broker import tell_outlived
from onceward.consumers.dead_letters import OURS, add_letter
from onceward.consumers.delivery import Delivery
from onceward.faststream.settlement import Settlement
from onceward.stores.redis.schema import info_of, is_evicting


class RedisSettlement(Settlement):
    """Settles the messages of a consumer group."""

    # FastStream leaves a rejected message pending, too.
    allowed: ClassVar[frozenset[AckPolicy]] = frozenset({AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR})

    def source_name(self) -> str:
        """Return the stream; "" if it is a list or a channel."""
        stream = getattr(self.subscriber, "stream_sub", None)
        return "" if stream is None else str(stream.name)

    def losing(self, beside: Sequence[Any]) -> str | None:
        """Return which setting loses messages."""
        stream = getattr(self.subscriber, "stream_sub", None)
        if stream is None:
            return "lists and channels of Redis forget a message before its handler begins: give stream=StreamSub(...)"
        if stream.group is None or stream.no_ack:
            return (
                "Redis forgets what it sent without a group, or with no_ack: give group= and consumer=, and no no_ack"
            )
        if not any(_claims(other, stream) for other in beside):
            return (
                "nobody claims what another consumer left pending, so a message that is not done never comes again: put a second "
                f'@broker.subscriber(stream=StreamSub("{stream.name}", group="{stream.group}", consumer=..., min_idle_time=60_000)) '
                "over this handler (with Redis 8.4, claim_min_idle_time= in the one there is)"
            )
        if self.order:
            return "Redis Streams keep no order when a message comes again: leave order=True out"
        return None

    async def prepare(self) -> None:
        """Refuse a server that would forget the dead letters."""
        if self._client is None:
            return
        info = info_of(await self._client.info())
        if is_evicting(info):
            raise SetupError(
                f"{self.source}: Redis evicts streams when it is full ({info['maxmemory_policy']}), also the dead letters {self.dead}: "
                "set maxmemory-policy noeviction"
            )
        tell_outlived(f"stream {self.source}", None, self.policy)

    @property
    def _client(self) -> Any:
        """The client of one server; None for a cluster, and under TestRedisBroker."""
        connection = self.config.connection
        return connection.client if connection and isinstance(connection.client, Redis) else None

    def readable(self, raw: Any) -> Any:
        """Return the entry, or the batch, with content that can be parsed."""
        if raw.get("type") not in {"stream", "bstream"}:
            return raw
        data = raw["data"]
        return {**raw, "data": [self._entry(one) for one in data] if isinstance(data, list) else self._entry(data)}

    def deliveries(self, message: Any) -> list[Delivery]:
        """Return the entries of a batch, or the one entry."""
        raw = message.raw_message
        entries = raw["data"] if isinstance(raw["data"], list) else [raw["data"]]
        ids = raw["message_ids"] or [None] * len(entries)  # FastStream's TestRedisBroker gives none
        return [self._delivery(message, name, fields) for name, fields in zip(ids, entries, strict=False)]

    async def receives(self, delivery: Delivery) -> int:
        """Return how often a consumer got it."""
        message, entry = delivery.raw
        pending = await message.consumer.xpending_range(self.source, message.group, entry, entry, 1) if entry else []
        return int(pending[0]["times_delivered"]) if pending else 1

    async def acknowledge(self, delivery: Delivery) -> None:
        """Take it from the pending ones."""
        message, entry = delivery.raw
        if entry:
            await message.consumer.xack(self.source, message.group, entry)

    async def give_back(self, delivery: Delivery, seconds: float, receives: int) -> None:
        """Leave it pending: it is claimed after the subscriber's ``min_idle_time``, because Redis knows no other delay."""

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> None:
        """Add it to the stream of the dead letters."""
        broker = self.config.extra_context["broker"]
        own: dict[str, str] = delivery.header.__self__  # type: ignore[attr-defined]  # the dict of its headers
        same = {name: text for name, text in own.items() if name.lower() not in OURS}
        all_headers = writable_headers({**same, **headers}, self._format)
        message, entry = delivery.raw
        if self._client is None or not entry:
            await broker.publish(delivery.body, stream=self.dead, headers=all_headers)
            return
        pipeline: Any = _Written()
        await broker.publish(delivery.body, stream=self.dead, headers=all_headers, pipeline=pipeline)
        await add_letter(self._client, self.dead, self.source, message.group, entry, pipeline.fields)

    async def close(self, message: Any) -> None:
        """Note that it is settled; Redis is not asked."""
        await message.nack()

    @property
    def _format(self) -> Any:
        return self.config.message_format

    def _entry(self, fields: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return an entry as FastStream writes it. The fields of other senders are its content, as JSON."""
        content = fields.get(bDATA_KEY)
        if content is None:
            envelope = {
                name.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
                for name, value in fields.items()
            }
            return {bDATA_KEY: msgspec.json.encode(envelope)}
        while not isinstance((parsed := self._format.parse(content))[1], dict):
            content = parsed[0]  # which can look like an entry of FastStream, too
        return {**fields, bDATA_KEY: content}

    def _delivery(self, message: Any, entry: bytes | None, fields: Mapping[bytes, bytes]) -> Delivery:
        body, headers = self._format.parse(self._entry(fields)[bDATA_KEY])
        name = None if entry is None else entry.decode()
        header = {str(name): str(value) for name, value in headers.items()}.get
        return Delivery("redis", (message, entry), name, body=body, header=header, destination=self.source)


class _Written:
    """Takes what FastStream's producer would add to a stream."""

    def __init__(self) -> None:
        self.fields: Mapping[Any, Any] = {}

    async def xadd(self, name: str, fields: Mapping[Any, Any], *_: Any, **__: Any) -> bytes:
        """Keep the fields."""
        self.fields = fields
        return b""


def writable_headers(headers: Mapping[str, Any], form: object) -> dict[str, Any]:
    """Return headers for a message of a FastStream format: the binary one counts the characters of text, and not its bytes."""
    if form is not BinaryMessageFormatV1:
        return dict(headers)
    return {name: text.encode() if isinstance(text, str) else text for name, text in headers.items()}


def _claims(subscriber: Any, stream: Any) -> bool:
    """Return whether a subscriber claims what is pending in the group of a stream."""
    other = getattr(subscriber, "stream_sub", None)
    if other is None or (other.name, other.group) != (stream.name, stream.group):
        return False
    return other.min_idle_time is not None or other.claim_min_idle_time is not None
