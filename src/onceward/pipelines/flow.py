"""A run of a pipeline: its source brings deliveries, its workers handle them, and outcomes are told."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.delivery import Delivery
from onceward.consumers.reader import DeliveryReader
from onceward.consumers.serving import StoppableBatch
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.drivers import drive_async
from onceward.core.protocol import is_live
from onceward.errors import StoreError
from onceward.observe.logs import logger
from onceward.outbox.relay import relay_beside
from onceward.pipelines.settings import seconds

if TYPE_CHECKING:
    from onceward.pipelines.pipeline import Pipeline
    from onceward.pipelines.sources.contract import Runs, SourceSettings

M = TypeVar("M")


class Flow:
    """What a source needs to bring deliveries to a pipeline.

    Attributes:
        once: the ledger.
        handler: takes a message.
        options: the keywords of a worker.
        report: is called with each recorded outcome.
        progress: returns the bytes that are read, and of how many, if the source sets it.
    """

    def __init__(self, pipeline: "Pipeline", report: Callable[[BatchOutcome], None] | None = None) -> None:
        self.pipeline, self.once = pipeline, pipeline.once
        self.handler = pipeline.handler
        self.report = report
        self.progress: Callable[[], tuple[int, int | None]] | None = None
        self._batch: StoppableBatch | None = None
        self._hold = pipeline.model.hold
        self._said = False

    @property
    def options(self) -> WorkerOptions:
        """See the class."""
        model = self.pipeline.model
        options: dict[str, Any] = {
            **self.pipeline.options,
            "concurrency": model.concurrency,
            "backoff": (seconds(model.backoff.first), seconds(model.backoff.longest)),
            "grace": None if model.grace is None else seconds(model.grace),
        }
        return cast("WorkerOptions", options)

    async def ready(self) -> None:
        """Wait while the key of ``hold`` is held: the source takes nothing meanwhile."""
        if self._hold is None:
            return
        store, pause = self.once.store, max(0.01, seconds(self._hold.every))
        while True:
            try:
                reply = await drive_async(store.load(self._hold.key), store)
            except StoreError as error:
                logger().warning("hold: the ledger cannot be asked for %s: %s", self._hold.key, error)
            else:
                if reply.record is None or not is_live(reply.record, reply.now):
                    self._say("goes on: %s is free", held=False)
                    return
                self._say("holds all input while %s is held", held=True)
            await asyncio.sleep(pause)

    def _say(self, text: str, *, held: bool) -> None:
        if held is not self._said and self._hold is not None:
            logger().warning(f"pipeline %s {text}", self.pipeline.model.name, self._hold.key)
        self._said = held

    def told(self, outcome: BatchOutcome) -> None:
        """Pass on a recorded outcome."""
        if self.report is not None:
            self.report(outcome)

    async def handle(self, delivery: Delivery) -> BatchOutcome:
        """Handle one delivery of a source that is no queue. It raises nothing about the message: see the outcome."""
        if self._batch is None:
            options: dict[str, Any] = {**self.pipeline.options}
            key, fingerprint = options.pop("key", None), options.pop("fingerprint", None)
            reader = DeliveryReader(self.handler, key, fingerprint)
            concurrency = self.pipeline.model.concurrency
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


class PipelineRun:
    """One run of a pipeline, from its own source or another.

    Args:
        pipeline: what runs.
        report: is called with each recorded outcome.
        source: takes the place of the pipeline's own.
    """

    def __init__(
        self,
        pipeline: "Pipeline",
        report: Callable[[BatchOutcome], None] | None = None,
        source: "SourceSettings | None" = None,
    ) -> None:
        self._pipeline = pipeline
        self._flow = Flow(pipeline, report)
        self._source = source or pipeline.source
        self._runs = self._source.open(self._flow)
        self.stopping = False

    @property
    def in_flight(self) -> int:
        """How many messages are held."""
        return self._runs.in_flight

    @property
    def progress(self) -> tuple[int, int | None]:
        """The bytes that are read, and of how many; 0 and None for a source without an end."""
        return (0, None) if self._flow.progress is None else self._flow.progress()

    async def run_async(self, *, until_empty: bool = False) -> None:
        """Run until :meth:`stop`, or until the source ends. With ``until_empty`` a queue ends when it has no more messages.

        Raises:
            StoreError, BrokerError, ValueError: the ledger or the source failed at the start.
        """
        # A worker has its own relay.
        relay = None if isinstance(self._runs, Worker) else relay_beside(self._flow.once)
        try:
            await self._pipeline.open()
            await self._runs.run_async(until_empty=until_empty or self._source.ends)
        finally:
            if relay is not None:
                await asyncio.to_thread(relay.stop)
            await self._pipeline.close()

    def stop(self) -> None:
        """Take nothing more, and end when what runs ends; from any thread."""
        self.stopping = True
        self._runs.stop()


def opened(pipeline: "Pipeline", report: Callable[[BatchOutcome], None] | None = None) -> "Runs":
    """Return what brings deliveries from a pipeline's own source, without opening what its steps and sinks need."""
    return pipeline.source.open(Flow(pipeline, report))
