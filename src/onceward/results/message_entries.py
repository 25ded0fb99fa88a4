"""The ``unsent`` of a record: the messages that leave with its completion, as JSON that a person can read in the ledger."""

from collections.abc import Mapping
from typing import Final

import msgspec

from onceward.core.policy import Seal
from onceward.results.sealing import opened, sealed
from onceward.results.values import model_data

LONGEST: Final = 64 * 1024  # bytes of all messages of a record: each write of its sender can send all of them


class MessageEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message.

    Attributes:
        to: the target's address.
        key: its idempotency key, the same each time it is sent.
        body: its text; if it is sealed, the seal of its body and headers.
        headers: text by name.
        delay: seconds before it can be received.
        group: the messages of one group keep their order.
        is_sealed: whether the body is sealed.
        tries: how often it was sent in vain.
        refused: why the target will never take it.
    """

    to: str
    key: str
    body: str
    headers: dict[str, str] = {}
    delay: float | None = None
    group: str | None = None
    is_sealed: bool = False
    tries: int = 0
    refused: str | None = None


class Unsent(msgspec.Struct, frozen=True):
    """The messages of a record.

    Attributes:
        by: a random id of who has the send lease: it tells one sender's write from another's.
        keep: seconds that the record stays after its completion when all are sent; None is for ever.
        messages: those that are left, in the order in which the handler sent them.
    """

    by: str
    keep: float | None
    messages: list[MessageEntry]

    @property
    def text(self) -> str:
        """The text of a record's ``unsent``."""
        return _ENCODER.encode(self).decode()

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(_ENCODER.encode(self))


class _Private(msgspec.Struct):
    """What a seal covers."""

    body: str
    headers: dict[str, str]


_DECODER: Final = msgspec.json.Decoder(Unsent)
_ENCODER: Final = msgspec.json.Encoder()


def body_of(message: object) -> str:
    """Return a message as text: text as it is, all else as JSON.

    Raises:
        TypeError, ValueError: it cannot be written so.
    """
    if isinstance(message, bytes | bytearray | memoryview):
        raise TypeError("message is bytes: a message is text, not bytes. Decode them, or encode them as base64")
    try:
        text = message if isinstance(message, str) else msgspec.json.encode(message, enc_hook=model_data).decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise TypeError(f"message cannot be written as JSON: {error}. Give text, or what msgspec encodes") from error
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"message cannot be sent: {error}. No target takes lone surrogates; replace them") from error
    return text


def unsent_of(text: str) -> Unsent:
    """Return the messages of a record.

    Raises:
        ValueError: they cannot be read.
    """
    return _DECODER.decode(text)


def sealed_message(entry: MessageEntry, seal: Seal | None) -> MessageEntry:
    """Return a message as the record has it; raises NotSealed if the seal fails."""
    if seal is None:
        return entry
    text = _ENCODER.encode(_Private(entry.body, entry.headers)).decode()
    return msgspec.structs.replace(entry, body=sealed(seal, text), headers={}, is_sealed=True)


def opened_message(entry: MessageEntry, seal: Seal | None) -> tuple[str, Mapping[str, str]]:
    """Return the body and the headers of a message; raises NotOpened if they are sealed and the seal cannot open them."""
    if not entry.is_sealed:
        return entry.body, entry.headers
    private = msgspec.json.decode(opened(seal, entry.body), type=_Private)
    return private.body, private.headers
