"""A worker for one queue of any broker: receives messages, has each handled once, and acknowledges it or gives it back."""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar, Unpack

from onceward.consumers.backoff import Backoff
from onceward.consumers.broker import Broker
from onceward.consumers.reader import DeliveryReader
from onceward.consumers.serving import Serving, StoppableBatch
from onceward.consumers.stop import signals
from onceward.core.drivers import drive_async
from onceward.core.policy import Options
from onceward.once import check_once

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome
    from onceward.keys.reading import KeySource
    from onceward.once import Once

M = TypeVar("M")
_PROBE: Final = "onceward.worker"  # a key that is looked for at the start, to find out whether there is a ledger


class Worker(Generic[M]):
    """Handles the messages of a broker, each once.

    A message is acknowledged when its effect is recorded, also by a handler before this one. One that failed comes again
    after a pause that doubles with each receive; one whose key is busy comes again when the other worker's lease ends. What
    cannot be handled (a parked key, another input under the same key, a malformed message) goes to the broker's dead letters.
    Without these it is kept in the ledger, in the parked record, and acknowledged after that.

    Args:
        once: the ledger and the defaults of the policy.
        broker: where messages come from; for this worker alone.
        handler: takes the payload. A plain function is called in threads.
        key: a JMESPath expression that begins with a parameter of the handler, or a callable; by default the delivery's own key.
        fingerprint: the same, or True for the whole payload: what must not change under one key.
        name: the namespace of the keys; by default the handler's module and qualified name.
        concurrency: how many handlers run at a time.
        backoff: seconds for which a message stays away after it failed, at first and at most.
        grace: seconds that running handlers have after a stop before they are interrupted, which leaves their keys claimed;
            None is as long as they take.
        on_outcome: called with each message's outcome once it is recorded, in the event loop; for metrics.
        **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` mean nothing here.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: "Once",
        broker: Broker[M],
        handler: Callable[..., object],
        *,
        key: "KeySource | None" = None,
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        concurrency: int = 10,
        backoff: tuple[float, float] = (1.0, 900.0),
        grace: float | None = None,
        on_outcome: "Callable[[BatchOutcome], None] | None" = None,
        **options: Unpack[Options],
    ) -> None:
        check_once(once, "Worker({}, broker, charge)")
        if not 0 <= backoff[0] <= backoff[1] < math.inf:
            raise ValueError(
                f"backoff={backoff!r}: give the first and the longest pause in seconds, as in (1.0, 900.0)"
            )
        if grace is not None and not 0 <= grace < math.inf:
            raise ValueError(f"grace={grace!r}: give a number of seconds, or None to wait as long as handlers take")
        self._broker = broker
        self._batch = StoppableBatch(
            once.guards,
            handler,
            DeliveryReader(handler, key, fingerprint).read,
            name=name,
            concurrency=concurrency,
            group=(lambda delivery: delivery.group) if broker.ordered else None,
            on_outcome=self._told,
            values=on_outcome is not None,
            **options,
        )
        self._backoff, self._grace = Backoff(*backoff), grace
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._began = self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: Serving[M] | None = None

    @property
    def in_flight(self) -> int:
        """How many messages are held, running or waiting for their turn."""
        return 0 if self._serving is None else len(self._serving.held)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._asked

    def run(self, *, until_empty: bool = False) -> None:
        """Work until :meth:`stop` or, in the main thread, SIGTERM or SIGINT.

        A signal is a stop. A second one interrupts the handlers that are still running, and a third kills the process.

        Args:
            until_empty: stop also when the queue has no more messages to give. Those that failed, and are invisible until
                they are tried again, are not waited for.

        Raises:
            BrokerError: the queue could not be looked at in the beginning, or is gone; or it failed, with ``until_empty``.
            StoreError: the ledger could not be looked at in the beginning.
            KeyboardInterrupt: there was a second signal.
            RuntimeError: this worker has run before; make another.
        """
        interrupted = False
        task: asyncio.Task[None] | None = None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            if task is not None:
                task.get_loop().call_soon_threadsafe(task.cancel)

        async def main() -> None:
            nonlocal task
            task = asyncio.current_task()
            await self.run_async(until_empty=until_empty)

        with signals(self.stop, interrupt):
            try:
                asyncio.run(main())
            except asyncio.CancelledError:
                if interrupted:
                    raise KeyboardInterrupt from None
                raise

    async def run_async(self, *, until_empty: bool = False) -> None:
        """As :meth:`run`, in an event loop, and without an ear for signals. A cancellation is what a second signal is to it."""
        with self._lock:
            if self._began:
                raise RuntimeError("a worker runs once: make another one")
            self._began = True
        guard = self._batch.guard  # nobody else's
        guard.policy = await self._broker.open(guard.policy)
        try:
            await drive_async(guard.store.load(_PROBE), guard.store)
            await self._serve(until_empty=until_empty)
        finally:
            await self._broker.close()

    def stop(self) -> None:
        """Receive nothing more, give back what has not begun, and end when what runs is done; from any thread.

        Before :meth:`run`, it makes that end at once.
        """
        # No lock: a signal handler may come while this very thread holds it.
        self._asked = True
        loop, serving = self._loop, self._serving
        if loop is not None and serving is not None:
            try:
                loop.call_soon_threadsafe(serving.stop)
            except RuntimeError:
                pass  # the event loop is closed, so it has ended

    async def _serve(self, *, until_empty: bool) -> None:
        serving = Serving(self._broker, self._batch, self._backoff, grace=self._grace, until_empty=until_empty)
        with self._lock:
            self._loop, self._serving = asyncio.get_running_loop(), serving
            if self._asked:
                serving.stop()
        try:
            await serving.run()
        finally:
            with self._lock:
                self._loop = None

    def _told(self, outcome: "BatchOutcome") -> None:
        assert self._serving is not None
        self._serving.told(outcome)
        if self._on_outcome is not None:
            self._on_outcome(outcome)
