"""The methods of Once whose messages and jobs leave without a claim."""

from typing import TYPE_CHECKING, Unpack

from onceward.core.drivers import drive, drive_async
from onceward.core.policy import Options
from onceward.keys.ledger_keys import checked_name

if TYPE_CHECKING:
    from onceward.claim.factory import GuardFactory
    from onceward.outbox.tasks import Enqueuing
    from onceward.outbox.transactions import TransactionOutbox
    from onceward.stores.contract import Store


class Unclaimed:
    """The part of :class:`onceward.Once` that sends without a claim."""

    guards: "GuardFactory"
    store: "Store"

    def outbox(self, connection: object, *, name: str | None = None, **options: Unpack[Options]) -> "TransactionOutbox":
        """Return an outbox for a transaction that you end: ``once.outbox(session).send("sqs:orders", order)``.

        The message leaves if the transaction commits (docs/reference/outbox.md). ``connection`` is as for
        :meth:`transaction`, but a transaction must be open on it. Of the options, only ``retention`` and ``seal`` have
        an effect. It raises TypeError if this ledger cannot do that.
        """
        from onceward.outbox.transactions import NAME, TransactionOutbox

        # Never that of a handler: it would take a message of the same key for its own completion.
        own = NAME if not self.guards.name else f"{self.guards.name}.{NAME}"
        space = own if name is None else checked_name(name)
        return TransactionOutbox(self.store, self.guards.policy(options), space, connection, self.guards.observers)

    def enqueue(self, task: object, /, *args: object, key: object, **kwargs: object) -> bool:
        """Queue a job of a task once for ``key``: ``once.enqueue(charge, order, key=("daily", day))``.

        One insert records the job, and this process sends it right after. After a crash a relay sends it, or another call with
        this key. The queue can get the job again after a lost reply, always with the same id (docs/reference/outbox.md).

        Args:
            task: a task of Celery, Dramatiq, Procrastinate or Taskiq, or a function under RQ's ``@job``. It must be a
                global name of its module.
            *args: the job's arguments: what JSON gives back unchanged.
            key: as for :meth:`Once.run`; unique among the jobs of ``task``. It counts as long as the record is kept (``retention``).
                Arguments are not compared. Give a parameter of the task that is called ``key`` by its place.
            **kwargs: the job's arguments, by name.

        Returns:
            True if this call has queued the job. False if an earlier call has queued it, or recorded it for a relay.

        Raises:
            TypeError, ValueError: the arguments do not fit the task, or JSON changes them; a relay could not import the task; its queue
                could lose the job; or this ledger has no outbox. Nothing was recorded.
            KeyMissing: the key or a part of it is None or empty.
            StoreError: the job may be recorded or not. Call again with the same key.
        """
        return drive(self._enqueuing().queue(task, args, kwargs, key, awaited=False), self.store)

    async def enqueue_async(self, task: object, /, *args: object, key: object, **kwargs: object) -> bool:
        """Like :meth:`enqueue`, for a coroutine. Procrastinate and Taskiq send in the event loop that awaits this.

        With these two it also waits at most 10 seconds, until the queue has the job or the send has failed.
        """
        enqueuing = self._enqueuing()
        is_mine = await drive_async(enqueuing.queue(task, args, kwargs, key, awaited=True), self.store)
        await enqueuing.sent()
        return is_mine

    def _enqueuing(self) -> "Enqueuing":
        from onceward.outbox.tasks import Enqueuing

        return Enqueuing(self.store, self.guards.defaults, self.guards.observers, self.guards.name)
