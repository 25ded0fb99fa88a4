"""NATS JetStream: a message that is not done is given back with a delay."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from faststream.exceptions import SetupError
from faststream.nats.response import NatsPublishCommand
from faststream.response.publish_type import PublishType
from nats.errors import Error, NotJSMessageError

from onceward.consumers.broker import tell_outlived
from onceward.consumers.delivery import Delivery
from onceward.consumers.nats_streams import consumer_losses, prepare_letters, store_letter, takes
from onceward.faststream.settlement import NACK, Settlement

_PATIENCE: Final = 10.0  # seconds for the stream of the dead letters to answer
_FASTSTREAMS: Final = 256  # bytes for the headers that FastStream adds


class NatsSettlement(Settlement):
    """Settles the messages of a JetStream consumer, pushed or pulled."""

    _letters: str | None = None  # the stream of the dead letters

    def source_name(self) -> str:
        """Return the subject."""
        return str(self.subscriber.subject.broker_address)

    def losing(self, beside: Sequence[Any]) -> str | None:
        """Return which setting loses messages."""
        subscriber, stream = self.subscriber, getattr(self.subscriber, "stream", None)
        if stream is None:
            return f"core NATS forgets each message: give stream=, durable= and {NACK.removeprefix('give ')}"
        config, extra = subscriber.config, subscriber.extra_options
        if extra.get("manual_ack") is False or extra.get("ordered_consumer"):
            return f"JetStream forgets each message before its handler ends: {NACK}, and no ordered_consumer"
        if losses := "; ".join(consumer_losses(config)):
            return losses
        if not (config.durable_name or extra.get("durable") or getattr(subscriber, "queue", "")):
            return "JetStream forgets this consumer when it stops, and what it has not handled: give durable="
        if self.order and config.max_ack_pending != 1:
            return "order=True needs one message at a time: give config=ConsumerConfig(max_ack_pending=1)"
        if not self.source or "*" in self.dead or ">" in self.dead:
            return f"{self.dead!r} cannot be a subject for dead letters: give @exactly(dead=...)"
        if takes(self.source, self.dead):
            return f"this subscriber would receive its own dead letters, {self.dead}: give another @exactly(dead=...)"
        return None

    def deliveries(self, message: Any) -> list[Delivery]:
        """Return the messages of a pull, or the one message."""
        raw = message.raw_message
        return [_delivery(one) for one in (raw if isinstance(raw, list) else [raw])]

    async def receives(self, delivery: Delivery) -> int:
        """Return how often JetStream has delivered it."""
        metadata = _metadata(delivery.raw)
        return 1 if metadata is None else int(metadata.num_delivered)

    async def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge it."""
        if not delivery.raw.is_acked:
            await delivery.raw.ack()

    async def give_back(self, delivery: Delivery, seconds: float, receives: int) -> None:
        """Give it back with a delay."""
        if not delivery.raw.is_acked:
            await delivery.raw.nak(delay=seconds)

    async def prepare(self) -> None:
        """Look at the stream of the dead letters, and make it if it is missing."""
        if not self._connection:
            return
        jetstream = self.subscriber.jetstream
        try:
            like = (await jetstream.stream_info(self.subscriber.stream.name)).config
            self._letters = await prepare_letters(jetstream, self.dead, like)
            tell_outlived(f"stream {like.name}", like.max_age or None, self.policy)
        except (Error, TimeoutError, ValueError) as error:
            raise SetupError(f"{self.source}: {str(error) or type(error).__name__}") from error

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> None:
        """Publish it to the stream of the dead letters."""
        raw = delivery.raw
        if not self._connection:
            await self._send_letter(raw, {**(raw.headers or {}), **headers})
            return
        room = self._connection.connection.max_payload - len(raw.data) - _FASTSTREAMS
        await store_letter(self.subscriber.jetstream, partial(self._send_letter, raw), raw, headers, self.dead, room)

    async def _send_letter(self, raw: Any, headers: dict[str, str]) -> Any:
        command = NatsPublishCommand(
            raw.data,
            subject=self.dead,
            stream=self._letters,
            headers=headers,
            timeout=_PATIENCE,
            _publish_type=PublishType.PUBLISH,
        )
        producer = self.config.js_producer
        return await producer.publish(command)

    @property
    def _connection(self) -> Any:
        """FastStream's; it is false under TestNatsBroker."""
        return self.config.connection_state


def _delivery(raw: Any) -> Delivery:
    header, metadata = (raw.headers or {}).get, _metadata(raw)
    name = header("correlation_id") if metadata is None else f"{metadata.stream}:{metadata.sequence.stream}"
    return Delivery("nats", raw, name, body=raw.data, header=header, destination=raw.subject)


def _metadata(raw: Any) -> Any:
    """Return what JetStream says of a message; None under FastStream's TestNatsBroker."""
    try:
        return raw.metadata
    except NotJSMessageError:
        return None
