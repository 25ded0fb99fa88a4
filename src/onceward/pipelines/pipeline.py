"""A pipeline: the file as one handler, with the options of its guard."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from onceward.batch.outcomes import BatchOutcome
from onceward.claim.claim import Claim
from onceward.claim.held import held
from onceward.consumers.delivery import Delivery, DeliveryOptions
from onceward.consumers.worker import Worker, run_stoppable
from onceward.core.arguments import check_type
from onceward.once import Once
from onceward.outbox.relay import relay_beside
from onceward.pipelines.call import PipelineCall, PipelineMessage, StandIn
from onceward.pipelines.chain import GuardRules, built_chain, built_sink
from onceward.pipelines.flow import Flow, SourceSettings
from onceward.pipelines.kit import Built, Kit, absolute
from onceward.pipelines.marks import Marked, Mistake, PipelineInvalid, Position, parse
from onceward.pipelines.model import PipelineFile
from onceward.pipelines.reading import ModelReader
from onceward.stores import open_store

NO_HOLD: Final = "AWS Lambda calls a pipeline when it likes, so it cannot hold its input: leave hold: out"


class Pipeline:
    """A pipeline that is ready to run. :func:`load` makes it.

    Attributes:
        once: the ledger of the file.
        model: what the file says.
        folder: where the file is; relative paths begin here.
        places: the file with its lines and columns.
        built: what was noted of its parts.
        mistakes: the warnings.
        stand_in: replaces effects and sinks in a dry run or a test; else None.
    """

    def __init__(
        self, once: Once, model: PipelineFile, marked: Marked, folder: Path, ledger: str | None = None
    ) -> None:
        self.once, self.model, self.folder = once, model, folder
        self.places = marked
        self.stand_in: StandIn | None = None
        self.built = built = Built(once, model, folder, ledger, built_chain, built_sink)
        kit = Kit(built, marked, guarded=model.guard is not None)
        if "." in model.name:
            kit.mistake(
                "name", "the name of a pipeline has no dot, which stands between its name and that of a guard in it"
            )
        if model.dead_letters is not None:
            kit.target("dead_letters", model.dead_letters)
            kit.needs_outbox("dead_letters")
        source = model.source
        self.source = cast("SourceSettings", source.settings)
        built.reserved = self.source.keeps
        self.source.check(kit.of(source.marked.parts[source.kind]))
        if model.guard is None and not self.source.has_ids:
            kit.mistake(
                "source",
                f"messages of {source.kind} have no ids of their own, so the file needs a guard: with a key, as in guard: "
                "{key: message.id}; guard: {} takes the SHA-256 of the message",
            )
        if model.hold is not None and not self.source.holds:
            kit.mistake("hold", NO_HOLD)
        self._rules = None if model.guard is None else GuardRules(kit, model.guard, ("guard",))
        self._steps = kit.chain(model.steps) if model.steps else None
        self._sinks = [kit.sink(choice) for choice in model.sinks]

    @property
    def mistakes(self) -> list[Mistake]:
        """All mistakes and warnings, in the order of the file."""
        return sorted(self.built.mistakes)

    async def close(self) -> None:
        """Close what its steps and sinks have opened."""
        for hook in reversed(self.built.closing):
            if isawaitable(ending := hook()):
                await ending

    # --- as a handler -------------------------------------------------------------------------------------------------

    @property
    def options(self) -> DeliveryOptions:
        """The keywords for a worker or a handler of Lambda, beside :attr:`handler`."""
        options: DeliveryOptions = {"name": self.model.name}
        if self._rules is None:
            return options

        def read(of: Callable[[PipelineMessage], object]) -> Callable[[Delivery], object]:
            return lambda delivery: of(_message(delivery.data, delivery))

        options.update(self._rules.options)  # type: ignore[typeddict-item]  # they are options of a policy
        options["key"] = read(self._rules.key)
        if self.model.guard is not None and self.model.guard.fingerprint is not None:
            options["fingerprint"] = read(self._rules.fingerprint)
        return options

    @property
    def handler(self) -> Callable[[Any, Delivery, Claim], Awaitable[object]]:
        """The function that handles one message."""

        async def pipeline(message: Any, delivery: Delivery, _claim: Claim) -> object:
            return await self.handle(message, delivery)

        pipeline.__qualname__ = f"pipeline {self.model.name}"  # errors begin with it
        return pipeline

    def flow(self, report: Callable[[BatchOutcome], object] = lambda _: None) -> Flow:
        """Return the flow that handles a source's deliveries. It calls ``report`` with each recorded outcome."""
        return Flow(self.built, self.handler, self.options, report)

    async def handle(self, data: object, delivery: Delivery) -> object:
        """Run the pipeline for one message, under the current claim. Return the result to record."""
        claim = held()
        message: PipelineMessage | None = _message(data, delivery)
        assert message is not None
        if claim.policy.retention is not None and claim.policy.retention < self.built.least_retention:
            claim.policy = claim.policy._replace(retention=self.built.least_retention)
        call = PipelineCall(claim, delivery, self.stand_in)
        if self._steps is not None:
            message = await self._steps(message, call)
        for sink in self._sinks:
            if message is not None:  # else a step or a sink has ended it
                message = await sink(message, call)
        return await call.ended(msgspec.to_builtins(call.printed) or None)


def _message(data: object, delivery: Delivery) -> PipelineMessage:
    meta: dict[str, object] = {
        "source": delivery.source,
        "id": delivery.id,
        "key": delivery.key,
        "group": delivery.group,
        "destination": delivery.destination,
        "raw": delivery.raw,
    }
    return PipelineMessage(data, meta)


def examine(
    path: str | Path, *, ledger: str | Once | None = None, rehearsal: Once | None = None
) -> tuple[Pipeline | None, list[Mistake]]:
    """Read a file; return the pipeline, if it can run, and all mistakes and warnings.

    Args:
        path: of the file.
        ledger: another ledger than the file's. A relative path of SQLite begins in the current folder.
        rehearsal: a ledger in memory that stands for the file's own. Set :attr:`Pipeline.stand_in` then.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return _examined(Path(path), ledger, rehearsal)
    except RecursionError:
        return None, [Mistake(Position(1, 1), "nested too deeply, or an alias contains itself")]


def _examined(file: Path, ledger: str | Once | None, rehearsal: Once | None) -> tuple[Pipeline | None, list[Mistake]]:
    marked, mistakes = parse(file.read_bytes())
    if marked is None:
        return None, mistakes
    reader = ModelReader()
    model = reader.read(marked)
    mistakes += reader.mistakes
    if model is None:
        return None, sorted(mistakes)
    folder = file.absolute().parent
    url: str | None = None
    try:
        if isinstance(ledger, Once):
            once = ledger
        else:
            url = ledger or model.ledger
            url = absolute(url, Path.cwd() if ledger else folder)
            once = rehearsal or Once(open_store(url))
    except (ValueError, TypeError, ImportError) as error:
        mistakes.append(Mistake(marked.place_of("ledger"), str(error) if ledger else marked.told(str(error), "ledger")))
        once = Once("memory:")  # for the other checks
    pipeline = Pipeline(once, model, marked, folder, url)
    mistakes = sorted([*mistakes, *pipeline.mistakes])
    return (None if any(not one.is_warning for one in mistakes) else pipeline), mistakes


def load(path: str | Path, *, ledger: str | Once | None = None) -> Pipeline:
    """Return the pipeline of a file, ready to run.

    Args:
        path: the path of the YAML file.
        ledger: the URL of another ledger than the file's, or a Once. A relative path of SQLite begins in the current folder.

    Raises:
        PipelineInvalid: the file has mistakes, and the error has all of them.
        OSError: the file cannot be read.
    """
    check_type("load(path)", path, (str, Path), "the path of a YAML file")
    pipeline, mistakes = examine(path, ledger=ledger)
    if pipeline is None:
        raise PipelineInvalid(str(path), [one for one in mistakes if not one.is_warning])
    return pipeline


class PipelineRun:
    """One run of a pipeline.

    Args:
        pipeline: what runs.
        report: is called with each recorded outcome.
    """

    def __init__(self, pipeline: Pipeline, report: Callable[[BatchOutcome], object] = lambda _: None) -> None:
        self._pipeline = pipeline
        self._flow = pipeline.flow(report)
        self._runs = pipeline.source.open(self._flow)
        self.stopping = False

    @property
    def in_flight(self) -> int:
        """How many messages are held."""
        return self._runs.in_flight

    async def run_async(self, *, until_empty: bool = False) -> None:
        """Run until :meth:`stop`, or until the source ends. With ``until_empty`` a queue ends when it has no more messages.

        Raises:
            StoreError, BrokerError, ValueError: the ledger or the source failed at the start.
        """
        # A worker has its own relay.
        relay = None if isinstance(self._runs, Worker) else relay_beside(self._pipeline.once)
        try:
            await self._runs.run_async(until_empty=until_empty or self._pipeline.source.ends)
        finally:
            if relay is not None:
                await asyncio.to_thread(relay.stop)
            await self._pipeline.close()

    def run(self, *, until_empty: bool = False) -> None:
        """Run as :meth:`run_async`, and stop after a signal."""
        run_stoppable(partial(self.run_async, until_empty=until_empty), self.stop)

    def stop(self) -> None:
        """Take nothing more, and end when what runs ends; from any thread."""
        self.stopping = True
        self._runs.stop()
