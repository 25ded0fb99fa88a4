"""Sends a message of RabbitMQ again that the ledger keeps, and unparks its key (``consumers/unparking.py``)."""

import asyncio
import os

from aio_pika import DeliveryMode, Message

from onceward.consumers.keeping import opened_kept
from onceward.consumers.unparking import check_keeps, unparked_after
from onceward.core.policy import Seal
from onceward.core.record import Record
from onceward.rabbitmq.address import RabbitPlace, read_address
from onceward.rabbitmq.connection import NO_ID, TROUBLE, Publisher, closed, connect, refused
from onceward.rabbitmq.message import read_kept
from onceward.stores.ledger import Ledger


def unpark_at(ledger: Ledger, key: str, address: str, seal: Seal | None = None) -> Record:
    """Send the message again that a parked record keeps, and unpark its key; return the record as it is now.

    The copy has the message's body, id, content type and headers. After a kill you can repeat the call, as long as the key is
    parked.

    Args:
        ledger: of the queue's workers.
        key: in the ledger.
        address: where to send, as ``amqp:orders`` (docs/reference/rabbitmq.md).
        seal: that of the workers.

    Raises:
        ValueError: the address is not valid.
        NotFound: there is no such key.
        BrokerError: it was not sent, or possibly not; the key is still parked.
        StoreError: the ledger failed; a copy may have been sent.
        OncewardError: the key is not parked, or keeps no message of RabbitMQ, or ``seal`` cannot open it.
    """
    place = read_address(address)

    def send(record: Record) -> None:
        asyncio.run(_sent(place, _copy(record, seal)))

    return unparked_after(ledger, key, send, place.shown)


def _copy(record: Record, seal: Seal | None) -> Message:
    kept = read_kept(opened_kept(record.key, check_keeps(record), seal))
    return Message(
        kept.body,
        headers=dict(kept.headers),
        content_type=kept.content_type,
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=kept.id or NO_ID + os.urandom(16).hex(),
    )


async def _sent(place: RabbitPlace, message: Message) -> None:
    connection = await connect(place.url)
    try:
        await (await Publisher.on(connection)).send(message, place.key, place.exchange)
    except TROUBLE as error:
        raise refused(place.shown, error) from error
    finally:
        await closed(connection)
