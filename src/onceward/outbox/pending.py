"""The messages of one handler, from ``claim.send`` until its completion carries them."""

import itertools
import os
from collections.abc import Callable, Mapping
from threading import RLock
from types import MappingProxyType
from typing import Final
from weakref import WeakSet

import msgspec

from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.origin import headers_for
from onceward.core.outbox_writes import NEVER_DUE, noting
from onceward.core.policy import Policy
from onceward.core.protocol import has_messages
from onceward.core.record import Record
from onceward.core.views import SOME_DAY
from onceward.errors import OncewardError, StoreError
from onceward.keys.ledger_keys import derived_key
from onceward.observe.observers import Observers
from onceward.outbox import sender
from onceward.outbox.sending import believed
from onceward.outbox.targets import OutboxMessage, open_target
from onceward.results.classes import NotReplayable
from onceward.results.message_entries import (
    LONGEST,
    MessageEntry,
    Unsent,
    body_of,
    opened_message,
    sealed_message,
    unsent_of,
)
from onceward.stores.capabilities import OUTBOX
from onceward.stores.contract import Store
from onceward.stores.ledger import Ledger


def decide_refused(ledger: Ledger, key: str, *, again: bool) -> list[MessageEntry]:
    """Let the refused messages of a key be sent ``again``, in their order among those that are left, or forget them. Return them.

    Raises:
        NotFound: there is no such key.
        OncewardError: it has no refused message; or they cannot be read, or somebody sends the others right now.
    """
    while True:
        record, now = ledger.show(key)
        if record.unsent is None or not has_messages(record):
            raise OncewardError(f"{key}: it has no unsent messages")
        try:
            before = unsent_of(record.unsent)
        except ValueError as error:
            raise OncewardError(f"{key}: its messages cannot be read: {error}") from error
        refusals = [entry for entry in before.messages if entry.refused is not None]
        if not refusals:
            raise OncewardError(f"{key}: it has no message that a target has refused")
        wait = (record.due_at or now) - now
        if 0 < wait < SOME_DAY:
            raise OncewardError(
                f"{key}: its other messages are sent, or wait for another try, for {wait:.0f} s. Try again after that"
            )
        left = [
            msgspec.structs.replace(entry, refused=None, tries=0) if again else entry
            for entry in before.messages
            if again or entry.refused is None
        ]
        # The id tells a sender whose lease is over that the messages are not its own any more.
        text = Unsent(os.urandom(8).hex(), before.keep, left).text if left else None
        write = noting(record, text, 0.0 if left else NEVER_DUE, before.keep)
        if drive(ledger.store.swap(write, record), ledger.store).won:
            return refusals


_EMPTY: Final = 100  # bytes that the text takes without messages
_TRACES: Final = 4096  # bytes of traces in the messages of a handler; further messages go without
_CHECKED: "WeakSet[Store]" = WeakSet()  # ledgers that have a place for messages


class PendingMessages:
    """What a handler has sent. Its threads and tasks can share one.

    Args:
        key: the key in the ledger, from which those of the messages are derived.
        by: who has the send lease after the completion.
        policy: the guard's.

    Attributes:
        since: when the completion was first sent, on this machine's clock (seconds); None before.
    """

    def __init__(self, key: str, by: str, policy: Policy) -> None:
        self._key = key
        self._by = by
        self._policy = policy
        self._lock = RLock()  # reentrant: a signal handler may send in this thread
        self._entries: list[MessageEntry] = []
        self._size = _EMPTY
        self._trace_room = _TRACES
        self._numbers = itertools.count(1)
        self.since: float | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._entries)

    def add(
        self,
        target: str,
        message: object,
        key: object = None,
        delay: float | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        check: Callable[[], None] = lambda: None,
        trace: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Check a message and keep it. Return its idempotency key.

        ``check`` raises if no message can join the completion any more. The message also carries the headers of ``trace``, if it
        has room. For the other arguments see ``Claim.send``.
        """
        open_target(target)  # first, so that its own error tells of a wrong target
        name = ("send", target, key) if key is not None else ("send", target, "number", next(self._numbers))
        own = derived_key(self._key, name)
        entry = MessageEntry(target, own, body_of(message), checked_headers(headers), checked_delay(delay), group)
        if group is not None and not isinstance(group, str):
            raise TypeError(f"group={group!r}: give text")
        self._check(entry)
        sealed = self._sealed(entry)
        size = len(msgspec.json.encode(sealed)) + 1  # the room of traces is not the handler's
        if (traced := self._traced(entry, trace)) is not entry:
            sealed = self._sealed(traced)
        with self._lock:
            check()
            if any(one.key == own for one in self._entries):
                raise ValueError(
                    f"{self._key}: two messages to {target} have the key {key!r}. Give each its own, or leave it out"
                )
            if self._size + size > LONGEST:
                raise ValueError(
                    f"{self._key}: the messages of a handler take at most {LONGEST} bytes, and with this one they take "
                    f"{self._size + size}. Send a reference to large data"
                )
            self._entries.append(sealed)
            self._size += size
        return own

    def _traced(self, entry: MessageEntry, trace: Mapping[str, str]) -> MessageEntry:
        more = {name: text for name, text in trace.items() if name not in entry.headers}
        size = len(msgspec.json.encode(more))
        if not more or size > self._trace_room:
            return entry
        traced = msgspec.structs.replace(entry, headers={**entry.headers, **more})
        try:
            self._check(traced)
        except (TypeError, ValueError):  # without it, the message was accepted
            return entry
        self._trace_room -= size
        return traced

    def _check(self, entry: MessageEntry) -> None:
        sent = {**entry.headers, **headers_for(self._key, None)}  # those of onceward count, too
        open_target(entry.to).check(OutboxMessage(entry.key, entry.body, sent, entry.delay, entry.group))

    def text(self) -> str | None:
        """Return the text for the completion, which is sent next; None if there is no message."""
        with self._lock:
            if self.since is None:
                self.since = boottime()
            return Unsent(self._by, self._policy.retention, self._entries).text if self._entries else None

    def hand_over(self, store: Store, record: Record, observers: Observers) -> None:
        """Let this process send the messages that the completion of ``record`` carried."""
        if self.since is None or record.unsent is None or record.unsent != self.text():
            return  # its reply came late, and somebody else has the send lease by now
        sender.send_soon(store, record, self._policy.seal, observers, believed(store, self._policy, self.since))

    def cut(self, count: int = 0) -> None:
        """Forget all but the first ``count``: what the handler did since is undone."""
        with self._lock:
            del self._entries[count:]
            self._size = _EMPTY + sum(len(msgspec.json.encode(one)) + 1 for one in self._entries)

    def _sealed(self, entry: MessageEntry) -> MessageEntry:
        """Return the message as the record has it; raises ValueError if the seal fails, or no sender could open it."""
        seal = self._policy.seal
        if seal is None:
            return entry
        try:
            sealed = sealed_message(entry, seal)
            if opened_message(sealed, seal) != (entry.body, entry.headers):
                raise NotReplayable("its seal does not open what it seals, so no message could be sent")
        except (NotReplayable, msgspec.MsgspecError) as error:
            raise ValueError(f"{self._key}: a message cannot be sealed and opened again: {error}") from error
        return sealed


def check_outbox(store: Store) -> None:
    """Check once for each ledger that it finds unsent messages after a crash. Only the first check asks it.

    Raises:
        TypeError: this ledger cannot do that.
        StoreError: it must be prepared first, as the message says; or it cannot be reached.
    """
    if store in _CHECKED:
        return
    look = OUTBOX.require(store)
    try:
        drive(look(), store)
    except StoreError as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        return  # it can only be awaited, and this is the thread of its event loop: nobody can look here
    _CHECKED.add(store)


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers; raises TypeError if they are not text by name."""
    copy: dict[str, str] = dict(headers or {})
    for header in copy.items():
        if not all(isinstance(part, str) for part in header):
            raise TypeError("headers=: give text by name")
    return copy


def checked_delay(delay: float | None) -> float | None:
    """Return the delay; raises TypeError or ValueError if it is no number of seconds."""
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(f"delay={delay!r}: give a number of seconds")
    if not 0 <= delay < float("inf"):
        raise ValueError(f"delay={delay!r}: give a number of seconds, at least 0")
    return float(delay)
