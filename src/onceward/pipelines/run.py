"""A run of a pipeline: its source brings deliveries, its workers handle them, and outcomes are told."""

import asyncio
from collections.abc import Callable

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.worker import Worker
from onceward.outbox.relay import relay_beside
from onceward.pipelines.contract import SourceSettings
from onceward.pipelines.pipeline import Pipeline


class PipelineRun:
    """One run of a pipeline, from its own source or another.

    Args:
        pipeline: what runs.
        report: is called with each recorded outcome.
        source: takes the place of the pipeline's own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        report: Callable[[BatchOutcome], None] | None = None,
        source: SourceSettings | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._flow = pipeline.flow(report)
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
            await self._runs.run_async(until_empty=until_empty or self._source.ends)
        finally:
            if relay is not None:
                await asyncio.to_thread(relay.stop)
            await self._pipeline.close()

    def stop(self) -> None:
        """Take nothing more, and end when what runs ends; from any thread."""
        self.stopping = True
        self._runs.stop()
