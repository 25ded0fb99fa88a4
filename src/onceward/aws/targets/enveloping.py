"""Messages to services whose records have no headers: key and headers are a member of the JSON object."""

import msgspec

from onceward.aws.events import ENVELOPE, KEY_ATTRIBUTE
from onceward.outbox.targets import OutboxMessage


def enveloped(message: OutboxMessage, service: str) -> str:
    """Return the message's JSON object with the member ``onceward``, which has its key and headers.

    Raises:
        ValueError: the message is no JSON object, or has such a member.
    """
    try:
        told = msgspec.json.decode(message.body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"a message to {service} is a JSON object: {error}") from error
    if ENVELOPE in told:
        raise ValueError(f"the message has a member {ENVELOPE!r}, which onceward itself writes; give it another name")
    envelope = {**message.headers, KEY_ATTRIBUTE: message.key}
    return msgspec.json.encode({**told, ENVELOPE: envelope}).decode()
