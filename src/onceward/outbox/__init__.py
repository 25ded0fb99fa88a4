"""The outbox: messages that are committed with a record, and sent after it.

``relay`` finds messages that are due. ``targets`` says what a target is, and opens one by its address. ``http_target`` is one of
them; those of AWS are in ``aws/targets/``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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
_ELSEWHERE = {  # loaded on first use
    "HttpTarget": "http_target",
    "Relay": "relay",
    "drain": "sender",
    "drain_async": "sender",
}


def __getattr__(name: str) -> object:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onceward.outbox.{_ELSEWHERE[name]}"), name)
