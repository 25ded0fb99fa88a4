"""Any HTTP endpoint as a target: a POST with an Idempotency-Key."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from onceward.core.origin import ENCODED, encoded
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import (
    SENT_WITHIN,
    MessageNotSent,
    MessageRefused,
    OutboxMessage,
    is_json,
    not_sent,
    refusal_of,
    refuse_options,
)
from onceward.wire import tls
from onceward.wire.endpoints import split_url
from onceward.wire.http1 import Raw, Unreadable, header
from onceward.wire.http_calls import WireRequest, asked_pause
from onceward.wire.sockets import Sockets

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, section 5.6.2
_VISIBLE: Final = re.compile(
    r"[!-~](?:[ -~]*[!-~])?"
)  # of a header's value (as above, section 5.5), without obsolete characters
# Ours, and those that belong to the connection.
_OWN: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# RFC 9110, section 15.5; 425: RFC 8470; 429: RFC 6585. 401, 403, 404, 407 and 421 are about credentials and routes, which a deploy
# can fix. 409 is a request with this key that still runs (draft-ietf-httpapi-idempotency-key-header-07, section 2.7).
_LATER: Final = frozenset({401, 403, 404, 407, 408, 409, 421, 423, 425, 429})
_MOVED: Final = frozenset({301, 308})  # for good (RFC 9110, sections 15.4.2 and 15.4.9)
_LONGEST_WAIT: Final = 86400.0  # seconds of a Retry-After that are honoured
_SHOWN: Final = 200  # characters of an answer that a reason quotes
_SOCKETS: Final = Sockets(SENT_WITHIN, tls.SSL_BUNDLE)  # addresses on one host share its connections

Headers = Callable[[OutboxMessage], Mapping[str, str]]


class HttpTarget:
    """An endpoint that takes POST requests. Each message is one request.

    The body is the message. The header ``Idempotency-Key`` has its key in quotes, as the IETF draft says. The message's
    headers are sent as headers. Content-Type is by default ``application/json``, or ``text/plain`` if the body is not
    JSON.

    A 2xx means that it was sent. After no answer, a temporary redirection, 5xx, 401, 403, 404, 407, 408, 409, 421, 423,
    425 or 429 it is sent again later. A Retry-After of up to a day is kept. Any other answer refuses the message, such
    as 400, 410, 422 or a permanent redirection. Redirections are not followed. The server's certificate is verified;
    SSL_CERT_FILE can name a file of trusted ones.

    Args:
        address: an ``https://`` or ``http://`` URL.
        headers: returns further headers for each request, such as a signature of the message or a token. The ledger does not have
            them. To use it, register a scheme of your own::

                register("billing", lambda address: HttpTarget("https://billing.example/charges", headers=sign))

    Raises:
        ValueError: the address is not a URL, or has a user or a fragment.
    """

    batch = 1

    def __init__(self, address: str, *, headers: Headers | None = None) -> None:
        self._origin, parts = split_url(address)
        self._path = (parts.path or "/") + (parts.query and f"?{parts.query}")
        self._headers = headers

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no endpoint can take the message."""
        refuse_options(f"{self._origin}: HTTP", message, "delay", "group")
        message.body.encode()
        _check(message.headers)

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Send messages, one after the other."""
        return [self._send(message) for message in messages]

    def close(self) -> None:
        """Do nothing: all HTTP targets share their idle connections."""

    def _send(self, message: OutboxMessage) -> Exception | None:
        if (refusal := refusal_of(self, message)) is not None:
            return refusal
        begun: list[Raw] = []
        try:
            more = {} if self._headers is None else self._headers(message)
            _check(more)
            raw = _SOCKETS.exchange(self._request(message, more), begun)
        except (OSError, Unreadable, UnicodeError, StoreError) as error:
            # UnicodeError: the host name is not possible. StoreError: the wire's own word for a certificate.
            if begun:  # only its content is too long, cut short or without an end
                return self._answer(begun[0])
            return not_sent(str(self._origin), error)
        except Exception as error:  # the user's callable can raise anything
            return error
        return self._answer(raw)

    def _request(self, message: OutboxMessage, more: Mapping[str, str]) -> WireRequest:
        content = message.body.encode()
        headers = {**message.headers, **more}
        lines = {
            "Host": self._origin.authority,
            "Idempotency-Key": f'"{message.key}"',
            "Content-Length": str(len(content)),
        }
        if "content-type" not in {name.lower() for name in headers}:
            lines["Content-Type"] = "application/json" if is_json(content) else "text/plain; charset=utf-8"
        lines |= {name: encoded(value) if name in ENCODED else value for name, value in headers.items()}
        head = f"POST {self._path} HTTP/1.1" + "".join(f"\r\n{name}: {value}" for name, value in lines.items())
        return WireRequest(self._origin, head.encode() + b"\r\n\r\n" + content, "POST", 0.0)

    def _answer(self, raw: Raw) -> MessageRefused | MessageNotSent | None:
        if 200 <= raw.status < 300:
            return None
        text = raw.body[: 4 * _SHOWN].decode(errors="replace")[:_SHOWN]
        why = f"{shown_url(f'{self._origin}{self._path}')} answered {raw.status}{text and f': {text!r}'}"
        if raw.status >= 500 or raw.status in _LATER or (raw.status < 400 and raw.status not in _MOVED):
            wait = asked_pause(header(raw.head, b"retry-after"), header(raw.head, b"date"))
            return MessageNotSent(why, retry_after=wait and min(wait, _LONGEST_WAIT))
        return MessageRefused(why)


def _check(headers: Mapping[str, str]) -> None:
    """Raise ValueError if something cannot be a header of a request."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(
                f"the header {name!r}: a name has no spaces and only some punctuation (RFC 9110, section 5.6.2)"
            )
        if name.lower() in _OWN:
            raise ValueError(f"the header {name}: onceward itself writes it; leave it out")
        if name not in ENCODED and not _VISIBLE.fullmatch(value):
            raise ValueError(f"the header {name}: its value must be visible ASCII characters, with spaces only inside")
