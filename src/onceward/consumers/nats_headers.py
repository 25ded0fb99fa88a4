"""Names of NATS, and headers that fit: the server closes the connection of a client that sends more than its ``max_payload``.

The client counts the payload alone, and the server counts the headers, too. So one such message would end a consumer.
"""

import re
from collections.abc import Mapping
from typing import Final

from onceward.consumers.dead_letters import REASON

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_FRAME: Final = 12  # bytes of "NATS/1.0" and of two ends of lines
_EACH: Final = 4  # bytes of a colon, a space and the end of a line


def name_for(text: str) -> str:
    """Return the name of a consumer or a stream for this text, such as a subject: without dots and spaces."""
    return _NOT_IN_A_NAME.sub("-", text)


def fitting(headers: Mapping[str, str], room: int) -> dict[str, str]:
    """Return headers that take up to ``room`` bytes; the reason of a dead letter is shortened if it must be.

    Raises:
        ValueError: they do not fit.
    """
    told = dict(headers)
    over = _size(told) - room
    if over > 0 and REASON in told:
        text = told[REASON].encode()
        told[REASON] = text[: max(0, len(text) - over)].decode(errors="ignore")
        over = _size(told) - room
    if over > 0:
        raise ValueError(
            f"the message and its headers have {over} bytes more than the server's max_payload: raise that"
        )
    return told


def _size(headers: Mapping[str, str]) -> int:
    return _FRAME + sum(len(name.encode()) + len(text.encode()) + _EACH for name, text in headers.items())
