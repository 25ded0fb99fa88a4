"""What a person decides about messages that a target has refused for good."""

import os
from collections.abc import Callable

import msgspec

from onceward.core.drivers import drive
from onceward.core.outbox_writes import NEVER_DUE, noting
from onceward.core.protocol import SOME_DAY, has_messages
from onceward.core.record import Record
from onceward.errors import OncewardError
from onceward.results.message_entries import MessageEntry, Unsent, unsent_of
from onceward.stores.ledger import Ledger

Change = Callable[[list[MessageEntry]], list[MessageEntry]]


def retry_refused(ledger: Ledger, key: str) -> list[MessageEntry]:
    """Let the refused messages of a key be sent again, in their order among those that are left. Return them.

    Raises:
        NotFound: there is no such key.
        OncewardError: it has no refused message; or they cannot be read, or somebody sends the others right now.
    """
    return _change(
        ledger, key, lambda entries: [msgspec.structs.replace(entry, refused=None, tries=0) for entry in entries]
    )


def drop_refused(ledger: Ledger, key: str) -> list[MessageEntry]:
    """Forget the refused messages of a key. Return them. Raises as :func:`retry_refused`."""
    return _change(ledger, key, lambda entries: [entry for entry in entries if entry.refused is None])


def _change(ledger: Ledger, key: str, change: Change) -> list[MessageEntry]:
    while True:
        record, now = ledger.show(key)
        before = _messages(record)
        refused = [entry for entry in before.messages if entry.refused is not None]
        if not refused:
            raise OncewardError(f"{key}: it has no message that a target has refused")
        wait = (record.due_at or now) - now
        if 0 < wait < SOME_DAY:
            raise OncewardError(
                f"{key}: somebody sends its other messages, or waits to send them again, for {wait:.0f} s: do it after that"
            )
        # The id tells a sender whose lease is over that the messages are not its own any more.
        after = Unsent(os.urandom(8).hex(), before.keep, change(before.messages))
        is_sendable = any(entry.refused is None for entry in after.messages)
        text = after.text if after.messages else None
        write = noting(record, text, 0.0 if is_sendable else NEVER_DUE, before.keep)
        if drive(ledger.store.swap(write, record), ledger.store).won:
            return refused


def _messages(record: Record) -> Unsent:
    if record.unsent is None or not has_messages(record):
        raise OncewardError(f"{record.key}: it has no unsent messages")
    try:
        return unsent_of(record.unsent)
    except ValueError as error:
        raise OncewardError(f"{record.key}: its messages cannot be read: {error}") from error
