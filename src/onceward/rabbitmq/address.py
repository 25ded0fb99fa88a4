"""Where messages go at RabbitMQ, as an address without a password, which the ledger can hold."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from onceward.core.urls import shown_url
from onceward.rabbitmq.connection import place

_FORMS = "amqp:orders, amqp://host/vhost?queue=orders or amqp://host/vhost?exchange=shop&key=order.paid"


class RabbitPlace(NamedTuple):
    """A queue, or an exchange with a routing key, of one broker."""

    url: str  # with the password
    exchange: str
    key: str

    @property
    def shown(self) -> str:
        """It, without the password."""
        what = f"exchange {self.exchange}, routing key {self.key}" if self.exchange else f"queue {self.key}"
        return f"{what} at {urlsplit(self.url).hostname}"


def read_address(address: str) -> RabbitPlace:
    """Return the place at an address. User and password come from AMQP_URL, and so does the broker if the address names none.

    Raises:
        ValueError: the address is not valid, or has a password.
    """
    parts = urlsplit(address)
    told = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc:
        raise ValueError(
            f"{parts.scheme}: the ledger would hold the password of this address: leave it out, and set AMQP_URL"
        )
    queue = told.pop("queue", "") or ("" if parts.netloc else unquote(parts.path))
    exchange, key = told.pop("exchange", ""), told.pop("key", "")
    if told or bool(queue) is bool(exchange) or (queue and key) or parts.fragment:
        raise ValueError(f"{shown_url(address)!r}: give {_FORMS}")
    known = place(None)
    if not parts.netloc:
        return RabbitPlace(known, exchange, queue or key)
    known_parts = urlsplit(known)
    user, at, _ = known_parts.netloc.rpartition("@")
    url = urlunsplit((parts.scheme, f"{user}{at}{parts.netloc}", parts.path or "/", known_parts.query, ""))
    return RabbitPlace(url, exchange, queue or key)
