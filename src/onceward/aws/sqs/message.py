"""Messages as SQS delivers them, as it accepts them, and as a record keeps them."""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.errors import OncewardError

# SQS API Reference, SendMessage. SQS refuses these characters; other versions of that page say that U+FFFD replaces them.
_FOREIGN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# SQS takes 1 MiB in one request. Until 2025 it took 256 KiB, as some test servers still do. Batches stay below that, and a larger
# message goes alone. The service refuses messages that are too large for a queue.
TOGETHER: Final = 256 * 1024
ENTRIES: Final = 10  # of a batch
LARGEST: Final = 1048576  # bytes of a message in any queue (SQS Developer Guide, "Amazon SQS message quotas")
MOST_ATTRIBUTES: Final = 10  # of a message (SQS Developer Guide, "Amazon SQS message metadata")
# SQS Developer Guide, "Amazon SQS message metadata": no two dots in a row, none at an end, and at most 256 characters.
_NAME: Final = re.compile(r"(?!(?i:aws|amazon)\.)(?!.{257})[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


class Attribute(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message attribute: its data type, such as ``String`` or ``Number.int``, and its text, or the bytes of a ``Binary``."""

    type: str
    value: str | None = None
    base64: bytes | None = None


class Message(NamedTuple):
    """A message that was received.

    Attributes:
        id: the service's own, the same in every delivery.
        receipt: the handle of this delivery, for deleting the message or changing its visibility.
        body: its text.
        attributes: the system attributes, such as ``ApproximateReceiveCount``, as the service writes them.
        user_attributes: those of its sender.
    """

    id: str
    receipt: str
    body: str
    attributes: Mapping[str, str]
    user_attributes: Mapping[str, Attribute]

    @property
    def receive_count(self) -> int:
        """How often it has been received, including this time; approximate."""
        return int(self.attributes.get("ApproximateReceiveCount", 1))

    @property
    def group(self) -> str | None:
        """Its message group; a FIFO queue keeps the order in it."""
        return self.attributes.get("MessageGroupId")


class Outgoing(NamedTuple):
    """A message to send.

    Attributes:
        body: text of the characters that XML allows: without most control characters.
        attributes: up to ten. Text is a String; an :class:`Attribute` has its own type.
        group: the message group: a FIFO queue needs one, a standard queue shares fairly among groups.
        dedup: a FIFO queue detects repetitions by it, within 5 minutes; None is the body's hash, if the queue does that.
        delay: whole seconds before it can be received, up to 900; None is the queue's own. FIFO queues accept none.
    """

    body: str
    attributes: Mapping[str, str | Attribute] | None = None
    group: str | None = None
    dedup: str | None = None
    delay: int | None = None


def read_message(entry: Mapping[str, Any]) -> Message:
    """Return a message of an answer to ReceiveMessage."""
    attributes = entry.get("MessageAttributes") or {}
    mine = {name: _read_attribute(value) for name, value in attributes.items()}
    return Message(entry["MessageId"], entry["ReceiptHandle"], entry["Body"], entry.get("Attributes") or {}, mine)


def entry_of(message: Outgoing) -> dict[str, object]:
    """Return the parameters of SendMessage for a message.

    Raises:
        ValueError: its body or an attribute is empty, or contains a character that SQS does not accept; or an attribute's name does.
    """
    entry: dict[str, object] = {"MessageBody": _checked(message.body, "the body")}
    if message.attributes:
        entry["MessageAttributes"] = {name: _write_attribute(name, one) for name, one in message.attributes.items()}
    optional = {
        "MessageGroupId": message.group,
        "MessageDeduplicationId": message.dedup,
        "DelaySeconds": message.delay,
    }
    return entry | {name: value for name, value in optional.items() if value is not None}


def size_of(entry: Mapping[str, Any]) -> int:
    """Return the bytes that count towards a limit: of the body, and of the attributes' names, types and values."""
    attributes = entry.get("MessageAttributes", {})
    parts = [entry.get("MessageBody", ""), *attributes, *(part for one in attributes.values() for part in one.values())]
    return sum(len(part.encode() if isinstance(part, str) else part) for part in parts)


def _read_attribute(item: Mapping[str, str]) -> Attribute:
    data = item.get("BinaryValue")
    return Attribute(item["DataType"], item.get("StringValue"), None if data is None else base64.b64decode(data))


def _write_attribute(name: str, attribute: str | Attribute) -> dict[str, str | bytes]:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the attribute {name!r}: a name has up to 256 letters, digits, '_', '-' and single dots inside, and does not begin with "
            "AWS. or Amazon."
        )
    one = attribute if isinstance(attribute, Attribute) else Attribute("String", attribute)
    if one.base64 is not None:
        return {"DataType": one.type, "BinaryValue": one.base64}  # base64 on the wire
    return {"DataType": one.type, "StringValue": _checked(one.value or "", f"the attribute {name}")}


def _checked(text: str, what: str) -> str:
    """Return a text; raises ValueError if SQS and SNS do not accept it. ``what`` says which text it is."""
    if not text:
        raise ValueError(f"{what} of the message is empty, which SQS does not accept")
    if (foreign := _FOREIGN.search(text)) is not None:
        raise ValueError(
            f"{what} of the message holds U+{ord(foreign[0]):04X} at {foreign.start()}, which SQS does not accept: send such "
            "data as JSON, which escapes it, or as base64"
        )
    return text


class Kept(NamedTuple):
    """A message that is kept."""

    queue: str  # the ARN of the queue that it was received from
    message: Message  # as it was received; of its system attributes, the message group


class _MessageText(msgspec.Struct):
    id: str
    queue: str
    group: str | None
    body: str
    attributes: Mapping[str, Attribute]


class _Text(msgspec.Struct):
    message: _MessageText


def kept_text(message: Message, queue: str) -> str:
    """Return the text for a record of a message from ``queue``, an ARN."""
    text = _Text(_MessageText(message.id, queue, message.group, message.body, message.user_attributes))
    return msgspec.json.encode(text).decode()


def read_kept(text: str) -> Kept:
    """Return the message that a record keeps.

    Raises:
        OncewardError: the text is not a message; somebody may have changed it.
    """
    try:
        message = msgspec.json.decode(text, type=_Text).message
        system = {} if message.group is None else {"MessageGroupId": message.group}
        return Kept(message.queue, Message(message.id, "", message.body, system, message.attributes))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise OncewardError(f"the record's text is not a message of a queue: {error!r}") from error


def alike(one: str, other: str) -> bool:
    """Return whether two texts of :func:`kept_text` are of equal messages. An unreadable text equals no other.

    A copy that was sent again also has an attribute of ours.
    """
    try:
        first, second = read_kept(one).message, read_kept(other).message
    except OncewardError:
        return False
    return first.body == second.body and _own(first) == _own(second)


def _own(message: Message) -> dict[str, Attribute]:
    return {name: value for name, value in message.user_attributes.items() if name != KEY_ATTRIBUTE}
