"""A message as a record keeps it: JSON that a person can read, complete enough to send the message again."""

import base64
from typing import NamedTuple

import msgspec

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.sqs.message import Attribute, Message
from onceward.errors import OncewardError


class Kept(NamedTuple):
    """A message that is kept."""

    queue: str  # the ARN of the queue that it was received from
    message: Message  # as it was received; of its system attributes, the message group


class _AttributeText(msgspec.Struct):
    type: str
    value: str | None = None
    base64: str | None = None


class _MessageText(msgspec.Struct):
    id: str
    queue: str
    group: str | None
    body: str
    attributes: dict[str, _AttributeText]


class _Text(msgspec.Struct):
    message: _MessageText


def kept_text(message: Message, queue: str) -> str:
    """Return the text for a record of a message from ``queue``, an ARN."""
    told = {
        "id": message.id,
        "queue": queue,
        "group": message.group,
        "body": message.body,
        "attributes": {name: _written(attribute) for name, attribute in message.user_attributes.items()},
    }
    return msgspec.json.encode({"message": told}).decode()


def read_kept(text: str) -> Kept:
    """Return the message that a record keeps.

    Raises:
        OncewardError: the text is not a message; somebody may have changed it.
    """
    try:
        told = msgspec.json.decode(text, type=_Text).message
        attributes = {name: _read(attribute) for name, attribute in told.attributes.items()}
        system = {} if told.group is None else {"MessageGroupId": told.group}
        return Kept(told.queue, Message(told.id, "", told.body, system, attributes))
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


def _written(attribute: Attribute) -> dict[str, str]:
    if isinstance(attribute.value, bytes):
        return {"type": attribute.type, "base64": base64.b64encode(attribute.value).decode()}
    return {"type": attribute.type, "value": attribute.value}


def _read(told: _AttributeText) -> Attribute:
    if told.base64 is not None:
        return Attribute(told.type, base64.b64decode(told.base64))
    if told.value is None:
        raise ValueError("an attribute has no value")
    return Attribute(told.type, told.value)
