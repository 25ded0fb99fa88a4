"""TaskJobs that are queued once for a key: one insert of a record that only carries the job, as a message to its task."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.outbox_writes import insert_messages, without_claim
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, may_send
from onceward.core.record import Reply, Write
from onceward.core.retries import patience, retry_transient
from onceward.core.writes import send_lease
from onceward.errors import StoreError
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.observers import Observers
from onceward.outbox import sender
from onceward.outbox.pending import PendingMessages, check_outbox
from onceward.outbox.sending import believed
from onceward.outbox.targets import SENT_WITHIN
from onceward.outbox.tasks import address_of, arguments_of, jobs_of
from onceward.stores.contract import Store


class Enqueuing:
    """One call of :meth:`onceward.Once.enqueue`, which says what this raises.

    Args:
        store: the ledger.
        policy: its ``retention``, ``seal`` and ``lease`` count.
        observers: are told what is sent.
        prefix: the name of the Once.
    """

    def __init__(self, store: Store, policy: Policy, observers: Observers, prefix: str | None) -> None:
        self._store, self._policy, self._observers, self._prefix = store, policy, observers, prefix
        self._tried: Future[None] | None = None

    def queue(
        self, task: object, args: Sequence[object], kwargs: Mapping[str, object], key: object, *, awaited: bool
    ) -> Steps[bool]:
        """Check a job, record it unless its key has one, and let this process send it. Return whether this call has recorded it.

        ``awaited`` is whether the caller is a coroutine, in the event loop that sends.
        """
        jobs = jobs_of(task)
        address, place = address_of(task, jobs)
        arguments = arguments_of(jobs, args, kwargs)
        # Never the namespace of a handler, which would take the job for its own completion. The parts are told apart, because
        # services can share a ledger.
        full = ledger_key(f"{'.'.join(filter(None, (self._prefix, 'enqueue')))}:{place}", key)
        owner = os.urandom(16).hex()
        pending = PendingMessages(full, owner, self._policy)
        pending.add(address, arguments)
        jobs.settle(awaited=awaited)
        check_outbox(self._store)
        since, text = boottime(), pending.text()
        assert text is not None
        write = without_claim(full, owner, self._policy, text)._replace(due=send_lease(self._policy))
        reply = yield from retry_transient(lambda: self._insert(write), boottime, patience(boottime))
        record = reply.record
        assert record is not None
        is_mine = record.owner == owner  # also if the reply to the insert was lost
        if is_mine and record.beat == write.beat:
            until = believed(self._store, self._policy, since)
            tried: Future[None] | None = None
            if awaited and jobs.broker is not None and not sender.SENDER.pause_of(address):
                tried = Future()
            if sender.send_soon(self._store, record, self._policy.seal, self._observers, until, tried):
                self._tried = tried
        elif may_send(record, reply.now):
            sender.send_soon(self._store, record, self._policy.seal, self._observers)
        return is_mine

    async def sent(self) -> None:
        """Wait until the job that :meth:`queue` recorded is sent, or was tried: its event loop may end right after."""
        if self._tried is not None:
            await asyncio.wait([asyncio.wrap_future(self._tried)], timeout=SENT_WITHIN)

    def _insert(self, write: Write) -> Steps[Reply]:
        reply = yield from insert_messages(self._store, write)
        if not reply.won and decide(reply.record, reply.now, write.owner, None, self._policy) is not Verdict.REPLAY:
            raise StoreError(
                f"{write.key}: its record is held by an open transaction, or of a newer version", transient=True
            )
        return reply
