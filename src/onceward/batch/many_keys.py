"""What a Once offers for many keys: batches, checkpoints, and jobs that run once per window."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack, cast

from onceward.claim.factory import GuardFactory
from onceward.core.policy import Options

if TYPE_CHECKING:
    from onceward.batch.batch import Batch, BatchOutcome, Group
    from onceward.batch.checkpoint.blocking import Flush
    from onceward.batch.checkpoint.context import CheckpointContext
    from onceward.batch.windows import At
    from onceward.keys.reading import KeySource

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ManyKeys:
    """The part of :class:`onceward.Once` that is about many keys.

    Attributes:
        guards: makes the guards.
    """

    guards: GuardFactory

    def batch(
        self,
        function: Callable[..., object],
        /,
        *,
        key: "KeySource",
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        concurrency: int = 1,
        group: "Group | None" = None,
        on_outcome: "Callable[[BatchOutcome], None] | None" = None,
        **options: Unpack[Options],
    ) -> "Batch":
        """Return a handler for batches: ``once.batch(charge, key="order.id").run(orders)`` handles each once.

        The records are claimed together and recorded together, and nothing that goes wrong with one harms another. A key
        that stands twice in a batch runs once.

        Args:
            function: handles one record, its only argument (but for the claim); a coroutine function for ``run_async``.
            key: as for a decorated function.
            fingerprint: the same.
            name: the namespace of the keys; default the function's module and qualified name, as when it is decorated.
            concurrency: how many handlers run at a time: threads for ``run``, tasks for ``run_async``.
            group: called with a record; those that it gives the same value (but None) are handled one after another, in the
                order given, and when one is not done the rest of them is deferred.
            on_outcome: called with each outcome once it is recorded, from any thread of the batch; for metrics.
            **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` mean nothing here: who is busy is reported.

        Raises:
            ValueError, TypeError: an option is not valid or does not fit the function.
        """
        from onceward.batch.batch import Batch, Reading
        from onceward.claim.handler import describe
        from onceward.keys.signatures import CallReader

        source = CallReader(function, key, fingerprint, describe(function).claim)

        def read(record: object) -> Reading:
            return Reading((record,), *source.read((record,), {}))

        return Batch(
            self.guards,
            function,
            read,
            name=name,
            concurrency=concurrency,
            group=group,
            on_outcome=on_outcome,
            **options,
        )

    def checkpoint(
        self,
        flush: "Flush[T]",
        /,
        *,
        key: "KeySource",
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        count: int | None = None,
        bytes: int | None = None,  # noqa: A002 - what it counts
        age: float | None = None,
        size: Callable[[T], int] | None = None,
        on_done: "Flush[T] | None" = None,
        **options: Unpack[Options],
    ) -> "CheckpointContext[T]":
        """Return a context, for ``with`` or ``async with``, whose sink buffers items and writes each of them once.

        ``sink.add(item)`` claims the item's key. When the buffer is flushed and ``flush`` returns, all keys in it complete
        together; when it raises, all are given back with an attempt counted before the error goes on, and the sink takes
        no more. Leaving the block flushes what is left; when the block raises, what is buffered is given back and no
        attempt is counted. A block that was left without an error has flushed and recorded everything that was added.

        The claims of what waits are renewed by heartbeats, so the lease need not cover the wait. It must cover the longest
        time in which this process may be unable to renew: a pause, or a ledger that is away. A flush is not begun when
        any claim in it was lost. An interrupted flush may still go on, so its keys stay claimed to the end of the lease.

        Args:
            flush: writes a list of items, in the order they were added, and raises when it cannot. A process that dies in it,
                or before it is recorded, leaves the keys to be taken over, and their items to be written again: derive the
                name of what is written from the items, or write what replaces itself.
            key: a JMESPath expression that begins with ``item``, as in "item.id", or a callable that is given the item.
            fingerprint: the same, or True for the whole item: what must not change under one key.
            name: the namespace of the keys; default the flush's module and qualified name. Give one when the flush closes
                over what changes from block to block.
            count: flush as soon as so many items are buffered.
            bytes: flush before more than so many bytes are buffered, or when there are as many. An item counts with its
                length when it is bytes, as UTF-8 when it is text, else as JSON; one that is larger goes alone.
            age: flush when the oldest item has been buffered for so many seconds. That flush runs in a thread of its own
                (with ``async with``, in a task), one at a time with ``add``; its error is raised by the next call, or when
                the block is left.
            size: returns the bytes of an item, instead of the above.
            on_done: called after each flush with the items whose keys are completed, those among them that ``add`` has called
                "buffered", so that they can be acknowledged. What it raises is logged and changes nothing.
            **options: see :class:`onceward.Policy`. ``on_busy``, ``final`` and ``cache`` mean nothing here.

        Returns:
            A context. With ``with`` it gives a :class:`onceward.batch.checkpoint.blocking.Checkpoint`; with ``async with`` an
            ``AsyncCheckpoint``, whose methods are awaited, and ``flush`` and ``on_done`` may be coroutine functions; others
            are called in a thread then.

        Raises:
            ValueError, TypeError: an option is not valid.
        """
        from onceward.batch.checkpoint.context import CheckpointContext
        from onceward.batch.checkpoint.items import ItemReader, Limits
        from onceward.batch.checkpoint.state import Buffer

        guard = self.guards.for_flush(flush, name, {**options, "on_busy": "raise", "final": (), "cache": 0})
        limits = Limits(count, bytes, age).checked()
        return CheckpointContext(Buffer(guard, ItemReader(key, fingerprint, size), limits), flush, on_done)

    def per(
        self,
        window: str | float,
        name: str | None = None,
        *,
        at: "At | None" = None,
        offset: float = 0.0,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Run a function once per window of time, whoever starts it: ``@once.per("1h")``, or ``once.per("1h")(job)(*args)``.

        A start within a window in which it has run returns the recorded result, whatever its arguments are. When it failed,
        the next start in that window runs it again. It is no lock between windows: a run that outlasts its window goes on
        beside the next.

        The window is found on the ledger's clock, never the worker's, with one request more. The last twentieth of a
        window, but no more than 60 seconds, counts to the next one, because cron starts jobs on the edge by clocks that are
        a little ahead.

        Args:
            window: its length: seconds, or as in "90s", "15m", "1h", "1d". Windows are aligned to the epoch, in UTC.
            name: the namespace of the keys; default the function's module and qualified name. The key is the window's start.
            at: the time that says which window it is, such as that for which the start was scheduled: a JMESPath expression
                or a callable (as ``key=`` for a decorated function) that finds an aware datetime, ISO 8601 text or seconds since the epoch; or such a datetime or number itself. It is taken as it is: nothing counts to
                the next window.
            offset: seconds by which windows begin later, as 1800 for "1h" on the half hour.
            **options: see :class:`onceward.Policy`. ``retention`` is two windows at least.

        Returns:
            A decorator, for functions and coroutine functions.

        Raises:
            ValueError, TypeError: an option is not valid, or the window too short for the ledger's clock. Raised when
                decorating; when called, for what ``at`` finds.
        """
        from onceward.batch.windows import Per, Windows

        made = Per(self.guards, Windows(window, offset), name, at, options)
        return cast("Callable[[Callable[P, R]], Callable[P, R]]", made.apply)
