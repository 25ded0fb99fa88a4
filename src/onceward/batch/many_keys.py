"""The methods of Once for many keys: batches, checkpoints, jobs that run once per window, and half-done keys."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack

from onceward.core.policy import Options

if TYPE_CHECKING:
    from onceward.batch.batch import Batch
    from onceward.batch.checkpoint.blocking import CheckpointContext
    from onceward.batch.checkpoint.sink import Flush
    from onceward.batch.handler import Group
    from onceward.batch.windows import At
    from onceward.claim.completer import Completer, Sweep
    from onceward.claim.factory import GuardFactory
    from onceward.keys.reading import KeySource

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ManyKeys:
    """The part of :class:`onceward.Once` for many keys. ``guards`` makes the guards."""

    guards: "GuardFactory"

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
        **options: Unpack[Options],
    ) -> "Batch":
        """Return a handler for batches: ``once.batch(charge, key="order.id").run(orders)`` handles each once.

        Records are claimed together and recorded together. A failed record does not affect the others. A key that occurs
        twice in a batch runs once.

        Args:
            function: handles one record, its only argument besides the claim. ``run_async`` takes coroutine functions too.
            key: as for a decorated function.
            fingerprint: as for a decorated function.
            name: the namespace of the keys; default the function's module and qualified name, as for a decorated function.
            concurrency: how many handlers run at once: threads for ``run``, tasks for ``run_async``.
            group: called with each record. Records with the same value (except None) run one after another, in order. If
                one is not done, the rest of its group is deferred.
            **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` have no effect: busy keys are reported.

        Raises:
            ValueError, TypeError: an option is not valid or does not fit the function.
        """
        from onceward.batch.batch import Batch, Reading
        from onceward.claim.handler import handler_of
        from onceward.keys.signatures import CallReader

        reads = CallReader(function, key, fingerprint, handler_of(function).claim).reads(lambda key: key)

        def read(record: object) -> Reading:
            return Reading((record,), *reads((record,), {}))

        return Batch(self.guards, function, read, name=name, concurrency=concurrency, group=group, **options)

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
        """Return a context for ``with`` or ``async with``. Its sink buffers items and writes each of them once.

        ``sink.add(item)`` claims the item's key. When ``flush`` returns, all buffered keys complete together. If it raises,
        all are given back, an attempt is counted, the error goes on, and the sink takes no more items. Leaving the block
        flushes the rest, so a block left without an error has flushed and recorded every item. If the block raises,
        buffered keys are given back and no attempt is counted.

        Heartbeats renew the claims of waiting items, so the lease need not cover the wait. It must cover the longest time
        in which this process may fail to renew: a pause, or a ledger that is away. If a claim was lost, its flush does not
        begin. An interrupted flush may still go on, so its keys stay claimed to the end of the lease.

        Args:
            flush: writes a list of items, in the order added; raises if it cannot. If the process dies before the flush is
                recorded, the keys are taken over and the items written again. So derive the target's name from the items,
                or overwrite.
            key: a JMESPath expression that begins with ``item``, as in "item.id", or a callable that takes the item.
            fingerprint: the same, or True for the whole item: what must not change under one key.
            name: the namespace of the keys; default the flush's module and qualified name. Give one if the flush closes
                over values that change from block to block.
            count: flush when this many items are buffered.
            bytes: flush when this many bytes are buffered, or before an item that would exceed them. Bytes count by their
                length, text as UTF-8, anything else as JSON. A larger item is flushed alone.
            age: flush when the oldest item has waited this many seconds. A thread (in ``async with``, a task) runs that
                flush, never at the same time as ``add``. The next call, or leaving the block, raises its error.
            size: returns an item's size in bytes, instead of the rule for ``bytes``.
            on_done: called after each flush with the items whose keys are completed, including those that ``add`` called
                "buffered". Acknowledge them there. Its errors are logged and change nothing.
            **options: see :class:`onceward.Policy`. ``on_busy``, ``final`` and ``cache`` have no effect.

        Returns:
            A context. ``with`` gives a :class:`onceward.batch.checkpoint.blocking.Checkpoint`; ``async with`` gives an
            ``AsyncCheckpoint`` with async methods. There, ``flush`` and ``on_done`` may be coroutine functions; others run
            in a thread.

        Raises:
            ValueError, TypeError: an option is not valid.
        """
        from onceward.batch.checkpoint.blocking import CheckpointContext
        from onceward.batch.checkpoint.limits import Limits
        from onceward.keys.paths import fixed
        from onceward.keys.reading import KeyReader

        guard = self.guards.for_flush(flush, name, {**options, "on_busy": "raise", "final": (), "cache": 0})
        limits, roots = Limits(count, bytes, age, size).checked(), fixed("item", "what you add")
        keys = KeyReader(key, roots.start if fingerprint is True else fingerprint, roots)
        return CheckpointContext(guard, keys, limits, flush, on_done)

    def per(
        self,
        window: str | float,
        name: str | None = None,
        *,
        at: "At | None" = None,
        offset: float = 0.0,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Run a function once per window of time, on all workers: ``@once.per("1h")``, or ``once.per("1h")(job)(*args)``.

        After a run, later calls in that window return the recorded result, whatever their arguments. If the run failed, the
        next call in that window runs it again. Windows do not lock each other: a run that outlasts its window continues
        beside the next one.

        One extra request reads the window from the ledger's clock, never the worker's. The last twentieth of a window, at
        most 60 seconds, belongs to the next window: cron starts jobs at the edge, and its clock may be a little ahead.

        Args:
            window: the length: seconds, or as in "90s", "15m", "1h", "1d". Windows are aligned to the epoch, in UTC.
            name: the namespace of the keys; default the function's module and qualified name. The key is the window's start.
            at: the time that selects the window, such as the scheduled time. Give an aware datetime or seconds since the
                epoch; or a JMESPath expression or a callable (as ``key=`` for a decorated function) that finds one of these
                or ISO 8601 text. It is used exactly: no part of a window belongs to the next.
            offset: seconds by which windows begin later, as 1800 for "1h" on the half hour.
            **options: see :class:`onceward.Policy`. ``retention`` is at least two windows.

        Returns:
            A decorator, for functions and coroutine functions.

        Raises:
            ValueError, TypeError: an option is not valid, or the window is too short for the ledger's clock (when
                decorating); or what ``at`` finds is not valid (when called).
        """
        from onceward.batch.windows import Windows, keyed_by_window, per_window

        return partial(per_window, keyed_by_window(self.guards, Windows(window, offset), name, at, options))

    def complete_lapsed(self, *functions: Callable[..., object], released: float | None = None) -> "Sweep":
        """Finish keys whose workers vanished. Their records keep the arguments (``keep_input=True``).

        It needs no redelivery. Any process that has the functions can call it, and several share the work. Each key keeps its
        policy: its attempts count, ``max_attempts`` and ``on_lapse="park"`` park it. A worker with a live lease is left alone.

        Args:
            *functions: decorated functions, or functions as you give them to ``run`` of this Once.
            released: seconds. Also run keys that were given back, and not retried for so long. Their callers got an
                exception, and may rely on it that nothing more happens.

        Returns:
            How many keys were completed, and what became of the others. It raises no exception of a function.

        Raises:
            StoreError: the ledger could not be reached.
            ValueError, TypeError: a function keeps no arguments, is a coroutine function, or is guarded on another ledger.
        """
        return self._completer(functions, released, awaited=False).run()

    async def complete_lapsed_async(self, *functions: Callable[..., object], released: float | None = None) -> "Sweep":
        """Like :meth:`complete_lapsed`, for coroutine functions (and functions that do not block)."""
        return await self._completer(functions, released, awaited=True).run_async()

    def _completer(
        self, functions: tuple[Callable[..., object], ...], released: float | None, *, awaited: bool
    ) -> "Completer":
        from onceward.claim.completer import Completer, keeping

        if not functions:
            raise TypeError("complete_lapsed() needs the functions whose keys it runs, as in complete_lapsed(place)")
        handlers = [keeping(self.guards, function) for function in functions]
        for one in handlers:
            if one.is_async and not awaited:
                raise TypeError(f"{one.inputs.name}() is a coroutine function: await once.complete_lapsed_async(...)")
        return Completer(handlers, released)
