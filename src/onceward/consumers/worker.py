"""A worker for one queue of any broker: it handles each message once, and acknowledges it or gives it back."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import signature
from typing import Final, TypeVar, Unpack

import msgspec

from onceward.consumers.broker import Broker
from onceward.consumers.delivery import Backoff, DeliveryOptions
from onceward.consumers.reader import DeliveryReader
from onceward.consumers.serving import Serving, StoppableBatch
from onceward.consumers.stop import signals
from onceward.core.drivers import drive_async
from onceward.core.policy import Options
from onceward.keys.reading import KeySource
from onceward.once import Once, check_once
from onceward.outbox.relay import relay_beside

M = TypeVar("M")
_PROBE: Final = "onceward.worker"  # the worker loads this key at the start, to check the ledger


PAUSES: Final = (1.0, 900.0)  # seconds: the first and the longest pause after a failure


def run_stoppable(run: Callable[[], Coroutine[object, object, None]], stop: Callable[[], None]) -> None:
    """Run a coroutine in an event loop of its own. The first signal calls ``stop``, a second one cancels it.

    Raises:
        KeyboardInterrupt: there was a second signal.
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
        await run()

    with signals(stop, interrupt):
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise


class WorkerOptions(DeliveryOptions, total=False):
    """The keywords of all workers, see :class:`Worker`."""

    concurrency: int
    backoff: tuple[float, float]
    grace: float | None
    relay: bool


class Worker(Serving[M]):
    """Handles the messages of a broker, each once.

    A message is acknowledged when its effect is recorded, also by an earlier handler. A failed message comes again after a pause
    that doubles with each receive. A busy key's message comes again when the other worker's lease ends. Messages that cannot be
    handled (parked, mismatch, malformed) go to the broker's dead letters, as
    ``Broker.dead_letters`` says. Without dead letters, the parked record in the ledger keeps the message, which is then
    acknowledged.

    Args:
        once: the ledger and the defaults of the policy.
        broker: where messages come from. Do not share it with another worker.
        handler: takes the payload. A plain function is called in threads.
        key: see :class:`onceward.consumers.delivery.DeliveryOptions`.
        fingerprint: the same.
        name: the same.
        concurrency: how many handlers run at a time.
        backoff: the first and the longest pause after a failure, in seconds.
        grace: seconds after a stop before running handlers are interrupted, which leaves their keys claimed; None waits
            until they end.
        relay: whether to send messages that other processes have left, too (docs/reference/outbox.md).
        **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` have no effect here.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    wants_values = False  # whether told() needs results that are stored outside their records

    def __init__(
        self,
        once: Once,
        broker: Broker[M],
        handler: Callable[..., object],
        *,
        key: KeySource | None = None,
        fingerprint: KeySource | bool | None = None,
        name: str | None = None,
        concurrency: int = 10,
        backoff: tuple[float, float] = PAUSES,
        grace: float | None = None,
        relay: bool = True,
        **options: Unpack[Options],
    ) -> None:
        check_once(once, f"{type(self).__name__}({{}}, ..., charge)")
        if not 0 <= backoff[0] <= backoff[1] < math.inf:
            raise ValueError(
                f"backoff={backoff!r}: give the first and the longest pause in seconds, as in (1.0, 900.0)"
            )
        if grace is not None and not 0 <= grace < math.inf:
            raise ValueError(f"grace={grace!r}: give a number of seconds, or None to wait as long as handlers take")
        super().__init__()
        self._broker = broker
        self._relays = once if relay else None
        self._batch = StoppableBatch(
            once.guards,
            handler,
            DeliveryReader(handler, key, fingerprint).read,
            name=name,
            concurrency=concurrency,
            group=(lambda delivery: delivery.group) if broker.ordered else None,
            heard=self.told,
            values=self.wants_values,
            **options,
        )
        self._backoff, self._grace = Backoff(*backoff), grace
        self._began = False

    @property
    def in_flight(self) -> int:
        """How many messages are held: running or waiting."""
        return len(self._held)

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` or a signal has told it to stop."""
        return self._asked

    def run(self, *, until_empty: bool = False) -> None:
        """Work until :meth:`stop` or, in the main thread, SIGTERM or SIGINT.

        The first signal stops the worker. A second one interrupts the running handlers, and a third kills the process.

        Args:
            until_empty: also stop when the queue is empty. Failed messages that are invisible until their next try do not
                count.

        Raises:
            BrokerError: the queue could not be read at the start, or is gone; or it failed, with ``until_empty``.
            StoreError: the ledger could not be read at the start.
            KeyboardInterrupt: there was a second signal.
            RuntimeError: this worker has run before; make another.
        """
        run_stoppable(partial(self.run_async, until_empty=until_empty), self.stop)

    async def run_async(self, *, until_empty: bool = False) -> None:
        """As :meth:`run`, in an event loop and without signals. A cancellation works like a second signal."""
        if self._began:
            raise RuntimeError("a worker runs once: make another one")
        self._began = True
        guard = self._batch.guard  # this worker's alone
        try:
            guard.policy = await self._broker.open(guard.policy)
        except self._broker.client_errors as error:
            raise self._broker.explained(error) from error
        try:
            await drive_async(guard.store.load(_PROBE), guard.store)
            relay = None if self._relays is None else relay_beside(self._relays, guard.policy.seal)
            try:
                await self._serve(until_empty=until_empty)
            finally:
                if relay is not None:
                    await asyncio.to_thread(relay.stop)
        finally:
            await self._broker.close()

    def stop(self) -> None:
        """Receive nothing more, give back waiting messages, and end when the running handlers end; from any thread.

        If you call it before :meth:`run`, then ``run`` ends at once.
        """
        self._asked = True
        if (loop := self._loop) is not None:
            try:
                loop.call_soon_threadsafe(self._stop_now)
            except RuntimeError:
                pass  # the event loop is closed: the worker has ended


def library_settings(
    settings: Mapping[str, object] | None, library: Callable[..., object], name: str
) -> dict[str, object]:
    """Return the settings for a call of a ``library``. Text becomes a number or a bool if the default is one.

    A password of digits stays text.

    Raises:
        ValueError: the library, whose ``name`` is for the error, has no such setting, or takes no such value.
    """
    options, values = signature(library).parameters, dict(settings or {})
    for setting, value in values.items():
        if setting not in options:
            raise ValueError(f"settings: {name} has no {setting}")
        kind = int if setting.endswith("_ms") else type(options[setting].default)
        if isinstance(value, str) and kind in {bool, float, int}:
            try:
                values[setting] = msgspec.convert(value, kind, strict=False)
            except msgspec.ValidationError:
                raise ValueError(f"settings: {setting} of {name}: give a value of type {kind.__name__}") from None
    return values
