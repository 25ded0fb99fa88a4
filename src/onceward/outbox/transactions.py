"""Messages that leave with a transaction of the caller's, without a claim: a record of their own, inserted in it."""

import os
from collections.abc import Mapping
from typing import Any, Final, TypedDict, Unpack
from uuid import uuid4

from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.outbox_writes import insert_messages, without_claim
from onceward.core.policy import DAY, Policy
from onceward.core.record import Write
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.observers import Observers
from onceward.outbox.pending import PendingMessages, check_outbox
from onceward.outbox.sender import send_soon
from onceward.stores.capabilities import TRANSACTION, Session, SessionTransport
from onceward.stores.contract import Store

NAME: Final = "outbox"  # the namespace of the records


def alone(key: str, policy: Policy, target: str, message: object, **more: Any) -> Write:
    """Return the insert of a record that only carries a message. For ``more`` see :meth:`PendingMessages.add`."""
    owner = os.urandom(16).hex()
    pending = PendingMessages(key, owner, policy)
    pending.add(target, message, **more)
    text = pending.text()
    assert text is not None
    return without_claim(key, owner, policy, text)


class OutboxOptions(TypedDict, total=False):
    """The keywords of :meth:`TransactionOutbox.send`.

    Attributes:
        key: sends once: a second message of that key is not sent while the record of the first is kept (``retention``). By default
            each call sends, and its record is kept for a day at most.
        delay: as for :meth:`onceward.Claim.send`, like the next two.
        group: as there.
        headers: as there.
    """

    key: object
    delay: float | None
    group: str | None
    headers: Mapping[str, str] | None


class TransactionOutbox:
    """Messages that leave when a transaction of yours commits. Make one with :meth:`onceward.Once.outbox`."""

    def __init__(self, store: Store, policy: Policy, name: str, connection: object, observers: Observers) -> None:
        self._join = TRANSACTION.require(store)
        self._store = store
        self._policy = policy
        self._name = name
        self._connection = connection
        self._observers = observers

    def send(self, target: str, message: object, **options: Unpack[OutboxOptions]) -> bool:
        """Send a message if, and only if, the open transaction commits.

        This inserts a record in the transaction. This process looks for it soon after, and sends it once it is committed. What it
        does not find within half a minute, or leaves behind when it ends, a relay sends.

        Args:
            target: as for :meth:`onceward.Claim.send`.
            message: its body.
            **options: see :class:`OutboxOptions`.

        Returns:
            Whether this transaction sends it. False: a message of that key was sent before, or leaves with another transaction.

        Raises:
            ValueError, TypeError: as for :meth:`onceward.Claim.send`; or the connection is in no transaction, or to another
                database, or one to await.
            StoreError: the database has refused the record; then it has probably failed the transaction.
        """
        session = self._session(awaited=False)
        steps = self._sending(session, target, message, **options)
        return drive(steps, SessionTransport(session, self._store))

    async def send_async(self, target: str, message: object, **options: Unpack[OutboxOptions]) -> bool:
        """Like :meth:`send`, on a connection that is awaited."""
        session = self._session(awaited=True)
        steps = self._sending(session, target, message, **options)
        return await drive_async(steps, SessionTransport(session, self._store))

    def _session(self, *, awaited: bool) -> Session:
        session = self._join(self._connection)
        if session.awaited is not awaited:
            raise TypeError(
                "this connection is for coroutines: await outbox.send_async(...)"
                if session.awaited
                else "this connection blocks: call outbox.send(...)"
            )
        return session

    def _sending(
        self, session: Session, target: str, message: object, key: object = None, **options: Any
    ) -> Steps[bool]:
        check_outbox(self._store)
        policy = self._policy
        if key is None and (policy.retention is None or policy.retention > DAY):
            policy = policy._replace(retention=DAY)  # nobody can ask for a random key
        full = ledger_key(self._name, uuid4() if key is None else key)
        write = alone(full, policy, target, message, **options)
        yield from session.attach()
        reply = yield from insert_messages(self._store, write)
        if reply.won and reply.record is not None:
            send_soon(self._store, reply.record, policy.seal, self._observers, is_certain=False)
        return reply.won
