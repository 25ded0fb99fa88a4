"""Sending one message to a target of the outbox, outside a handler: the claim, the send, and the record of its key."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack, cast

from onceward.core.origin import headers_for
from onceward.core.policy import Options
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.once import Once, check_once
from onceward.outbox.targets import OutboxMessage, open_target, refusal_of
from onceward.results.message_entries import body_of

if TYPE_CHECKING:
    from onceward.claim.guard import Guard

TARGET_SEND: Final = "send"  # the namespace of keys of messages that are sent
_NO_SKIP: Final = "the result of send could not say whether the message was sent"


class TargetOptions(Options, total=False):
    """The keywords of :func:`send`, besides those of :class:`onceward.Policy`; ``cache`` has no effect here.

    Attributes:
        headers: text by name.
        group: the messages of one group keep their order, if the target can do that.
        delay: seconds before the message can be received, if the target can do that.
        name: the namespace of the key; default "send".
    """

    headers: Mapping[str, str] | None
    group: str | None
    delay: float | None
    name: str | None


def send(once: Once, target: str, message: object, *, key: object, **options: Unpack[TargetOptions]) -> str:
    """Send a message once for ``key``, and return its idempotency key, also to duplicates.

    If the answer is lost, nobody knows whether the message was sent. The send then raises and gives the key back, so that the retry
    sends again, with the same idempotency key. Consumers take it once by that key.

    Args:
        once: the ledger that remembers what was sent.
        target: an address as for ``claim.send`` (docs/reference/outbox.md).
        message: text, which is sent unchanged; anything else is sent as JSON.
        key: as for :meth:`Once.run`; unique among the messages to this target.
        **options: see :class:`TargetOptions`.

    Raises:
        MessageRefused, MessageNotSent: it was refused; or it may have been sent, see above.
        Busy, Parked, KeyMissing, StoreError: it was not sent.
        ResultNotRecorded: it was sent.
        ValueError, TypeError: the target can never take it, or an option is not valid. Nothing was claimed.
    """
    guard, full, sent = _sending(once, target, message, key, **options)
    return cast("str", guard.call(full, None, sent, (), {}))


async def send_async(once: Once, target: str, message: object, *, key: object, **options: Unpack[TargetOptions]) -> str:
    """As :func:`send`, for a coroutine."""
    guard, full, sent = _sending(once, target, message, key, **options)
    return cast("str", await guard.call_async(full, None, partial(asyncio.to_thread, sent), (), {}))


def _sending(
    once: Once,
    address: str,
    message: object,
    key: object,
    *,
    headers: Mapping[str, str] | None = None,
    group: str | None = None,
    delay: float | None = None,
    name: str | None = None,
    **options: Unpack[Options],
) -> "tuple[Guard, str, Callable[[], str]]":
    """Return the guard, the key in the ledger, and what sends the message, after all checks that need no request."""
    check_once(once, f"send({{}}, {address!r}, message, key=...)")
    guard = once.guards.for_keys(name, options, no_skip=_NO_SKIP, default=TARGET_SEND)
    target, full = open_target(address), ledger_key(guard.name, (address, key))
    all_headers = {**(headers or {}), **headers_for(full, None)}
    outgoing = OutboxMessage(derived_key(full, (TARGET_SEND,)), body_of(message), all_headers, delay, group)
    target.check(outgoing)

    def sent() -> str:
        traced = outgoing._replace(headers={**guard.observers.headers(), **all_headers})
        has_room = refusal_of(target, traced) is None
        (answer,) = target.send([traced if has_room else outgoing])
        if answer is not None:
            raise answer
        return outgoing.key

    return guard, full, sent
