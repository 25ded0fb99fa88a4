"""Runs the examples of a file on a ledger in memory: once, as a duplicate, and with a kill at each point of the way.

Effects are counted and not made; sinks collect. What a killed run has sent counts only if its claim was completed.
"""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from onceward.batch.outcomes import BatchOutcome
from onceward.claim.claim import Claim
from onceward.consumers.delivery import Delivery
from onceward.errors import OncewardError
from onceward.observe.events import Event, StoreRequest
from onceward.once import Once
from onceward.pipe.commands import Interrupted
from onceward.pipelines.call import PipelineCall, PipelineMessage, StepFailed
from onceward.pipelines.model import Example
from onceward.pipelines.pipeline import Pipeline, examine
from onceward.results.outcomes import describe
from onceward.stores.memory import MemoryStore
from onceward.terminal import json

_EPOCH: Final = 1_767_225_600.0  # the time of the examples' ledger: 2026-01-01


class ExampleResult(NamedTuple):
    """What became of an example.

    Attributes:
        name: of the example.
        faults: what is not as it should be; none if all is well.
        kills: how many runs were killed on the way.
    """

    name: str
    faults: list[str]
    kills: int


class ExampleStage:
    """One pipeline on a ledger of its own, for one example.

    Attributes:
        effects: how often each effect was made.
        units: the recorded step that each effect is in: itself, or a retry.
        points: where a run can be killed: the recorded step that it is in, or None between two.
    """

    def __init__(self, file: Path, example: "Example") -> None:
        self._now = _EPOCH
        clock = lambda: self._now
        once = Once(MemoryStore(clock), clock=clock, observe=[self._heard])
        self.pipeline = cast("Pipeline", examine(file, rehearsal=once)[0])  # it was checked before
        self.pipeline.stand_in = self
        self._example = example
        self._flow = self.pipeline.flow()
        handler = self._flow.handler

        async def killable(message: Any, delivery: Delivery, claim: Claim) -> object:
            value = await handler(message, delivery, claim)
            self._point(None)
            return value

        self._flow.handler = killable
        self.effects: Counter[str] = Counter()
        self._outputs: dict[str, list[Any]] = defaultdict(list)
        self.units: dict[str, str] = {}
        self._staged: dict[str, list[tuple[str, Any]]] = defaultdict(list)  # by the claim's key
        self.points: list[str | None] = []
        self._kill_at: int | None = None

    def seen(self) -> dict[str, dict[str, Any]]:
        """Return how often each effect was made, and what each sink got for good, as it is now."""
        return {
            "effects": dict(self.effects),
            "output": {title: [*data] for title, data in self._outputs.items()},
        }

    def run(self, number: int, kill_at: int | None = None) -> "BatchOutcome | None":
        """Bring the example's message; return the outcome, or None if the run was killed."""
        self.points, self._kill_at = [], kill_at
        delivery = Delivery("example", {"example": self._example.name})
        guarded = self.pipeline.model.guard is not None
        delivery.id = f"delivery-{number}"
        delivery.key = f"{self._example.name}-{number if guarded else 0}"  # a redelivery, without a guard
        delivery.data = self._example.input
        try:
            return asyncio.run(self._flow.handle(delivery))
        except Interrupted:
            return None

    def later(self) -> None:
        """Let all leases lapse."""
        self._now += self.pipeline.built.lease + 60

    async def effect(self, title: str, _message: "PipelineMessage", call: "PipelineCall") -> Any:
        """Count an effect."""
        self.units[title] = call.unit
        self._point(call.unit)
        self.effects[title] += 1
        self._point(call.unit)
        if title in self._example.errors:
            raise StepFailed(self._example.errors[title])
        return self._example.results.get(title)

    def sink(self, title: str, message: "PipelineMessage", call: "PipelineCall") -> None:
        """Keep a message until its claim is completed."""
        self._point(None)
        self._staged[call.claim.record.key].append((title, message.data))

    def _heard(self, event: "Event | StoreRequest") -> None:
        if isinstance(event, StoreRequest) or event.key is None:
            return
        if event.kind in {"claimed", "taken_over"}:
            self._staged.pop(event.key, None)
        elif event.kind == "completed":
            for title, data in self._staged.pop(event.key, ()):
                self._outputs[title].append(data)

    def _point(self, unit: str | None) -> None:
        self.points.append(unit)
        if self._kill_at == len(self.points) - 1:
            raise Interrupted


def run_examples(file: Path, pipeline: "Pipeline") -> list[ExampleResult]:
    """Run the examples of a checked pipeline."""
    return [_run(file, example) for example in pipeline.model.examples]


def _run(file: Path, example: "Example") -> ExampleResult:
    first = ExampleStage(file, example)
    outcome = first.run(0)
    assert outcome is not None
    points, seen = first.points, first.seen()
    unknown = {*example.results, *example.errors} - first.pipeline.built.titles.keys()
    faults = [f"there is no effect or sink {name!r}" for name in sorted(unknown)]
    if example.fails is not None:
        text = "" if outcome.error is None else describe(outcome.error)
        if outcome.ok or not example.fails.search(text):
            faults.append(f"it should fail with {example.fails.pattern!r}, and ended with {_why(outcome)}")
    elif not outcome.ok:
        faults.append(f"it ended with {_why(outcome)}")
    for name, wanted in (("effects", example.effects), ("output", example.output)):
        expected = None if wanted is None else {title: one for title, one in wanted.items() if one}
        if expected is not None and seen[name] != expected:
            faults.append(f"{name}: expected {json(expected)}, and there was {json(seen[name])}")
    if faults or not outcome.ok:
        return ExampleResult(example.name, faults, 0)
    again = first.run(1)
    if first.seen() != seen:
        faults.append(f"a duplicate is not harmless: {_difference(first, seen)}")
    elif again is None or not again.ok:
        faults.append(f"a duplicate fails: {_why(again)}")
    faults += filter(None, (_killed(file, example, number, unit, seen) for number, unit in enumerate(points)))
    return ExampleResult(example.name, faults, len(points))


def _killed(
    file: Path, example: "Example", number: int, unit: str | None, seen: dict[str, dict[str, Any]]
) -> str | None:
    """Kill a run at a point, and let the message come again. Return what is wrong then."""
    where = f"killed within {unit}" if unit is not None else f"killed at point {number + 1}"
    stage = ExampleStage(file, example)
    if stage.run(0, kill_at=number) is not None:
        return f"{where}: the run went another way than before"
    at_kill = Counter(stage.effects)
    stage.later()
    outcome = stage.run(0)
    if unit is not None and unit in stage.pipeline.built.parking:
        parked = outcome is not None and outcome.status in {"parked", "failed"} and stage.effects == at_kill
        return None if parked else f"{where}: it is not parked: {_why(outcome)}"
    if outcome is None or not outcome.ok:
        return f"{where}: the next attempt ends with {_why(outcome)}"
    effects = Counter(seen["effects"])
    more = [title for title in stage.effects - effects if stage.units[title] != unit]
    if more:
        return f"{where}: made again although it was recorded: {', '.join(more)}"
    if effects - stage.effects or stage.seen()["output"] != seen["output"]:
        return f"{where}: {_difference(stage, seen)}"
    return None


def _difference(stage: ExampleStage, seen: dict[str, dict[str, Any]]) -> str:
    return f"{json(stage.seen())}, before {json(seen)}"


def _why(outcome: "BatchOutcome | None") -> str:
    if outcome is None:
        return "no outcome"
    error = outcome.error
    if error is None:
        return outcome.status
    return f"{outcome.status}: {error if isinstance(error, OncewardError) else describe(error)}"
