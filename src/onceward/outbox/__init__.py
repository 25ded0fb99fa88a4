"""The outbox: messages that are committed with a record, and sent after it.

``relay`` finds messages that are due. ``targets`` says what a target is, and opens one by its address. ``http_target`` is one of
them; those of AWS are in ``aws/targets/``.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, Target, register

if TYPE_CHECKING:
    from onceward.outbox.http_target import HttpTarget
    from onceward.outbox.relay import Relay
    from onceward.outbox.sender import drain, drain_async

__all__ = [
    "HttpTarget",
    "MessageNotSent",
    "MessageRefused",
    "OutboxMessage",
    "Relay",
    "Target",
    "drain",
    "drain_async",
    "register",
]

__getattr__, __dir__ = lazily(
    __name__, {".http_target": ("HttpTarget",), ".relay": ("Relay",), ".sender": ("drain", "drain_async")}
)
