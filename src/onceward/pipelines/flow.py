"""What sources bring deliveries to: the handler of a pipeline with its options, and who hears the outcomes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.delivery import Backoff, Delivery, DeliveryOptions
from onceward.consumers.reader import DeliveryReader
from onceward.consumers.serving import StoppableBatch
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.drivers import drive_async
from onceward.core.protocol import is_live
from onceward.errors import StoreError
from onceward.observe.logs import logger
from onceward.once import Once
from onceward.pipelines.model import PipelineFile

M = TypeVar("M")


class Flow:
    """What a source needs to bring deliveries to a pipeline.

    Args:
        once: the ledger.
        model: what the file says.
        folder: where the file is; relative paths begin here.
        handler: takes a message.
        options: the pipeline's own keywords of a worker.
        keep: takes the seconds that a record must stay at least.
        report: is called with each recorded outcome.

    Attributes:
        progress: returns the bytes that are read, and of how many, if the source sets it.
    """

    def __init__(
        self,
        once: "Once",
        model: "PipelineFile",
        folder: "Path",
        handler: Callable[..., Awaitable[object]],
        options: "DeliveryOptions",
        keep: Callable[[float], None],
        report: Callable[[BatchOutcome], None] | None = None,
    ) -> None:
        self.once, self.model, self.folder, self.handler = once, model, folder, handler
        self.keep, self.report = keep, report
        self.progress: Callable[[], tuple[int, int | None]] | None = None
        self._options = options
        self._batch: StoppableBatch | None = None
        self._said = False

    @property
    def options(self) -> WorkerOptions:
        """The keywords of a worker."""
        model = self.model
        options: dict[str, Any] = {
            **self._options,
            "concurrency": model.concurrency,
            "backoff": (model.backoff.first, model.backoff.longest),
            "grace": model.grace,
        }
        return cast("WorkerOptions", options)

    async def ready(self) -> None:
        """Wait while the key of ``hold`` is held: the source takes nothing meanwhile."""
        hold = self.model.hold
        if hold is None:
            return
        store, pause = self.once.store, max(0.01, hold.every)
        while True:
            try:
                reply = await drive_async(store.load(hold.key), store)
            except StoreError as error:
                logger().warning("hold: the ledger cannot be asked for %s: %s", hold.key, error)
            else:
                if reply.record is None or not is_live(reply.record, reply.now):
                    self._say(f"goes on: {hold.key} is free", held=False)
                    return
                self._say(f"holds all input while {hold.key} is held", held=True)
            await asyncio.sleep(pause)

    def _say(self, text: str, *, held: bool) -> None:
        if held is not self._said:
            logger().warning("pipeline %s %s", self.model.name, text)
        self._said = held

    def told(self, outcome: BatchOutcome) -> None:
        """Pass on a recorded outcome."""
        if self.report is not None:
            self.report(outcome)

    async def handle(self, delivery: Delivery) -> BatchOutcome:
        """Handle one delivery of a source that is no queue. It raises nothing about the message: see the outcome."""
        if self._batch is None:
            options: dict[str, Any] = {**self._options}
            key, fingerprint = options.pop("key", None), options.pop("fingerprint", None)
            reader = DeliveryReader(self.handler, key, fingerprint)
            concurrency = self.model.concurrency
            self._batch = StoppableBatch(
                self.once.guards, self.handler, reader.read, concurrency=concurrency, heard=self.told, **options
            )
        (outcome,) = await self._batch.run_async([delivery])
        return outcome


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
        self.flow.told(outcome)


class FlowRuns:
    """A source that is no queue: its stop, and the pauses that the file asks for."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.name = flow, flow.model.name
        self.backoff = Backoff(*flow.options["backoff"])
        self.grace = flow.options["grace"]
        self.stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

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
