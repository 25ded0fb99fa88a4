"""What a source is, and what it brings deliveries to: the handler of a pipeline, and who hears the outcomes.

A new source is a class, and a line in ``SOURCES``.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

import msgspec

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.callers import Tasks, unless_set
from onceward.consumers.dead_letters import is_unhandled
from onceward.consumers.delivery import Backoff, Delivery, DeliveryOptions, time_away
from onceward.consumers.reader import DeliveryReader
from onceward.consumers.serving import StoppableBatch
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.clock import boottime
from onceward.core.drivers import drive_async
from onceward.core.protocol import is_live
from onceward.core.record import Reply
from onceward.core.retries import patience, retry_transient
from onceward.errors import StoreError
from onceward.observe.logs import logger
from onceward.pipelines.kit import Built, Kit
from onceward.pipelines.settings import Settings

M = TypeVar("M")
_TROUBLE: Final = 5.0  # seconds until a ledger that gave no answer is asked again


class Flow(msgspec.Struct, eq=False):
    """What a source needs to bring deliveries to a pipeline.

    Attributes:
        built: the pipeline's ledger, file and folder.
        handler: takes a message.
        guard_options: the pipeline's own keywords of a worker.
        report: is called with each recorded outcome.
    """

    built: Built
    handler: Callable[..., Awaitable[object]]
    guard_options: DeliveryOptions
    report: Callable[[BatchOutcome], object] = lambda _: None
    batch: StoppableBatch | None = None
    is_held: bool = False

    @property
    def options(self) -> WorkerOptions:
        """The keywords of a worker."""
        model = self.built.model
        pauses = model.backoff.first, model.backoff.longest
        more = {"concurrency": model.concurrency, "backoff": pauses, "grace": model.grace}
        return cast("WorkerOptions", {**self.guard_options, **more})

    async def ready(self) -> None:
        """Wait while the key of ``hold`` is held: the source takes nothing meanwhile."""
        hold = self.built.model.hold
        if hold is None:
            return
        while (reply := await self.load(hold.key)).record is not None and is_live(reply.record, reply.now):
            self._say(f"holds all input while {hold.key} is held", held=True)
            await asyncio.sleep(max(0.01, hold.every))
        self._say(f"goes on: {hold.key} is free", held=False)

    async def load(self, key: str) -> Reply:
        """Return a record and the ledger's time. It waits for a ledger that is away."""
        store = self.built.once.store
        while True:
            try:
                load = partial(store.load, key)
                return await drive_async(retry_transient(load, boottime, patience(boottime)), store)
            except StoreError as error:
                logger().warning("pipeline %s: the ledger does not answer: %s", self.built.model.name, error)
                await asyncio.sleep(_TROUBLE)

    def _say(self, text: str, *, held: bool) -> None:
        if held is not self.is_held:
            logger().warning("pipeline %s %s", self.built.model.name, text)
        self.is_held = held

    async def handle(self, delivery: Delivery) -> BatchOutcome:
        """Handle one delivery of a source that is no queue. It raises nothing about the message: see the outcome."""
        if self.batch is None:
            options: dict[str, Any] = {**self.guard_options}
            reader = DeliveryReader(self.handler, options.pop("key", None), options.pop("fingerprint", None))
            options |= {"concurrency": self.built.model.concurrency, "heard": self.report}
            self.batch = StoppableBatch(self.built.once.guards, self.handler, reader.read, **options)
        (outcome,) = await self.batch.run_async([delivery])
        return outcome


class SourceSettings(Settings):
    """Where messages come from."""

    has_ids = True  # False: deliveries have no key of their own, so the file needs a guard
    keeps: ClassVar[str | None] = None  # what names keys of its own, behind the pipeline's name: no guard can have it
    holds = True  # whether it can wait while the key of hold: is held
    ends = False  # whether it has an end, as a file has

    def check(self, kit: "Kit") -> None:
        """Note mistakes and missing extras. It makes no request."""

    @abstractmethod
    def open(self, flow: "Flow") -> "Runs":
        """Return what brings the deliveries to ``flow``."""


class FlowWorker(Worker[M], Generic[M]):
    """A worker of a flow. Derive from this first, and then from the worker, and set ``flow``."""

    wants_values = True
    flow: Flow

    async def ready(self) -> None:
        """Receive nothing while the flow holds."""
        await self.flow.ready()

    def told(self, outcome: BatchOutcome) -> None:
        """Tell the flow, too."""
        super().told(outcome)
        self.flow.report(outcome)


class FlowRuns(ABC):
    """A source that is no queue: its stop, and the pauses that the file asks for."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.name = flow, flow.built.model.name
        self.backoff = Backoff(*flow.options["backoff"])
        self.grace = flow.options["grace"]
        self.stopping = asyncio.Event()
        self.tasks = Tasks()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def in_flight(self) -> int:
        """How many messages are held."""
        return len(self.tasks)

    async def handled(self, make: Callable[[], Delivery], *, again: bool = True) -> BatchOutcome:
        """Handle a delivery, and try again until it is done, here or elsewhere, or parked, or until a stop."""
        receives = 0
        while True:
            receives += 1
            outcome = await self.flow.handle(make())
            if outcome.ok or is_unhandled(outcome) or not again:
                return outcome
            await unless_set(self.stopping, asyncio.sleep(time_away(outcome, receives, self.backoff, goes=False)))
            if self.stopping.is_set():
                return outcome

    @abstractmethod
    async def run_async(self, *, until_empty: bool = False) -> None:
        """Run until :meth:`stop`, or with ``until_empty`` until nothing is left."""

    def begin(self) -> None:
        """Note the event loop that :meth:`stop` wakes."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Take nothing more, and end when what runs ends; from any thread."""
        if self._loop is None:
            self.stopping.set()
            return
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Begin nothing more. It is called in the event loop."""
        self.stopping.set()


Runs = Worker[Any] | FlowRuns  # what brings deliveries until it is stopped
