"""A worker for one SQS queue: receives messages, has each handled once, and deletes it or gives it back."""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from onceward.aws.events.sqs import Unwrap, message_delivery
from onceward.aws.sqs.acknowledge import Backoff
from onceward.aws.sqs.facts import QueueFacts, bounded, read_facts, warnings
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.queue_steps import LONGEST_HOLD, LONGEST_WAIT
from onceward.aws.sqs.serving import Serving, StoppableBatch
from onceward.consumers.reader import DeliveryReader
from onceward.core.drivers import drive_async
from onceward.core.policy import Options
from onceward.once import check_once

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    from onceward.batch.outcomes import Outcome
    from onceward.keys.reading import KeySource
    from onceward.once import Once

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PROBE: Final = "onceward.sqs"  # a key that is looked for at the start, to find out whether there is a ledger


class SqsWorker:
    """Handles the messages of a queue, each once: ``SqsWorker(once, "orders", charge, key="order.id").run()``.

    A message is deleted when its effect is recorded, also by a handler before this one. One that failed comes again after a
    pause that doubles with each receive; one whose key is busy comes again when the other worker's lease ends. What cannot
    be handled (a parked key, another input under the same key, a malformed message) the queue's redrive policy takes to the
    dead-letter queue. Without one it is kept in the ledger, in the parked record, and deleted after that: ``onceward unpark
    KEY --to QUEUE`` sends it again. In a FIFO queue the messages of a group are handled in order, and what comes after one
    that failed waits for it.

    The visibility of all messages that are held is extended until they are done, up to the 12 hours that SQS allows.

    Args:
        once: the ledger and the defaults of the policy.
        queue: its URL, ARN or name; or a Queue.
        handler: takes the payload, and is given exactly what :func:`onceward.aws.on_sqs` would give it. A plain function is
            called in threads.
        key: see :class:`onceward.aws.events.handler.Settings`; by default the message's own id.
        fingerprint: the same.
        name: the namespace of the keys; by default the handler's module and qualified name.
        unwrap: as for :func:`onceward.aws.on_sqs`.
        concurrency: how many handlers run at a time.
        visibility: whole seconds after which a message that a vanished worker held is received by another; 1 to 43,200; None
            is the queue's own.
        wait: seconds that a poll waits for a message, up to 20; a stop waits for it, too.
        backoff: seconds for which a message stays away after it failed, at first and at most.
        grace: seconds that running handlers have after a stop before they are interrupted, which leaves their keys claimed;
            None is as long as they take.
        on_outcome: called with each message's outcome once it is recorded, in the event loop; for metrics.
        **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` mean nothing here. ``max_attempts`` is 10 when it
            is not given and the queue has no redrive policy; a malformed message, or one with another input under its key,
            is kept after so many receives.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: "Once",
        queue: Queue | str,
        handler: Callable[..., object],
        *,
        key: "KeySource | None" = None,
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        unwrap: Unwrap | None = None,
        concurrency: int = 10,
        visibility: int | None = None,
        wait: float = LONGEST_WAIT,
        backoff: tuple[float, float] = (1.0, 900.0),
        grace: float | None = None,
        on_outcome: "Callable[[Outcome], None] | None" = None,
        **options: Unpack[Options],
    ) -> None:
        check_once(once, "SqsWorker({}, 'orders', charge)")
        _check(visibility, wait, backoff, grace)
        if unwrap not in {None, "sns"}:
            raise ValueError(f'unwrap={unwrap!r}: give "sns", or leave it out')
        self.queue = Queue(queue) if isinstance(queue, str) else queue
        self._once = once
        self._delivery = partial(message_delivery, unwrap=unwrap, fifo=self.queue.fifo)
        self._batch = StoppableBatch(
            once,
            handler,
            DeliveryReader(handler, key, fingerprint).read,
            name=name,
            concurrency=concurrency,
            group=(lambda delivery: delivery.group) if self.queue.fifo else None,
            on_outcome=self._told,
            values=on_outcome is not None,
            **options,
        )
        self._visibility, self._wait, self._backoff, self._grace = visibility, wait, Backoff(*backoff), grace
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._began = self._asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: Serving | None = None

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
            QueueError: the queue could not be looked at in the beginning, or is gone; or it failed, with ``until_empty``.
            StoreError: the ledger could not be looked at in the beginning.
            KeyboardInterrupt: there was a second signal.
            RuntimeError: this worker has run before; make another.
        """
        import asyncio

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

        with _signals(self.stop, interrupt):
            try:
                asyncio.run(main())
            except asyncio.CancelledError:
                if interrupted:
                    raise KeyboardInterrupt from None
                raise

    async def run_async(self, *, until_empty: bool = False) -> None:
        """As :meth:`run`, in an event loop, and without an ear for signals. A cancellation is what a second signal is to it."""
        import asyncio

        with self._lock:
            if self._began:
                raise RuntimeError("a worker runs once: make another one")
            self._began = True
        facts = await self._looked()
        visibility = facts.visibility if self._visibility is None else self._visibility
        guard = self._batch.guard  # nobody else's
        guard.policy = bounded(facts, guard.policy)
        self._warn(facts, visibility)
        serving = Serving(
            self.queue,
            self._batch,
            facts,
            self._delivery,
            visibility=visibility,
            wait=self._wait,
            backoff=self._backoff,
            grace=self._grace,
            until_empty=until_empty,
        )
        with self._lock:
            self._loop, self._serving = asyncio.get_running_loop(), serving
            if self._asked:
                serving.stop()
        try:
            await serving.run()
        finally:
            with self._lock:
                self._loop = None

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

    def _told(self, outcome: "Outcome") -> None:
        assert self._serving is not None
        self._serving.told(outcome)
        if self._on_outcome is not None:
            self._on_outcome(outcome)

    async def _looked(self) -> QueueFacts:
        """Look at the queue and at the ledger: who may not use them is told so before any message is received."""
        facts = read_facts(await self.queue.attributes_async())
        if facts.visibility == 0 and self._visibility is None:
            raise ValueError(
                f"queue {self.queue.name}: its visibility timeout is 0, so others would receive its messages while they are handled: "
                "give visibility=, in seconds"
            )
        store = self._once.store
        await drive_async(store.load(_PROBE), store)
        return facts

    def _warn(self, facts: QueueFacts, visibility: int) -> None:
        import logging

        log = logging.getLogger("onceward")
        policy = self._batch.guard.policy
        if facts.receives is None:
            log.info(
                "queue %s: it has no dead-letter queue: what is parked after %s attempts is kept in the ledger",
                self.queue.name,
                policy.max_attempts,
            )
        for text in warnings(facts, policy, visibility, self._backoff.longest):
            log.warning("queue %s: %s", self.queue.name, text)


def _check(visibility: object, wait: float, backoff: tuple[float, float], grace: float | None) -> None:
    if visibility is not None and not (type(visibility) is int and 1 <= visibility <= LONGEST_HOLD):
        raise ValueError(f"visibility={visibility!r}: give 1 to 43200 whole seconds, or None for the queue's own")
    if not 0 <= wait <= LONGEST_WAIT:
        raise ValueError(f"wait={wait!r}: give 0 to 20 seconds")
    if not 0 <= backoff[0] <= backoff[1] <= LONGEST_HOLD:
        raise ValueError(
            f"backoff={backoff!r}: give the first and the longest pause in seconds, up to 43200, as in (1.0, 900.0)"
        )
    if grace is not None and not 0 <= grace < math.inf:
        raise ValueError(f"grace={grace!r}: give a number of seconds, or None to wait as long as handlers take")


@contextmanager
def _signals(stop: Callable[[], None], interrupt: Callable[[], None]) -> Iterator[None]:
    """Hear the signals of this process in its main thread: the first stops, the second interrupts, the third is the system's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = False

    def hear(_number: int, _frame: "FrameType | None") -> None:
        nonlocal heard
        if not heard:
            heard = True
            stop()
            return
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        interrupt()

    # One that this process was started to ignore, as by nohup, stays so.
    before = {number: was for number in SIGNALS if (was := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
