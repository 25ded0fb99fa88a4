"""The steps without an effect outside: ``map``, ``filter``, ``switch``, ``each``, ``guard`` and ``send``."""

from typing import Annotated, Literal

from msgspec import Meta

from onceward.pipelines.call import PipelineCall, PipelineMessage, StepAction
from onceward.pipelines.chain import InnerGuard
from onceward.pipelines.kit import Kit, StepSettings
from onceward.pipelines.model import InnerGuardSettings
from onceward.pipelines.settings import Expression, MessageField, Settings, SinkChoice, StepList


class MapStep(StepSettings):
    """Change the message. All expressions see it as it was before this step.

    Attributes:
        to: The new message. By default it is the old one.
        set: Fields to set, such as payment.total, each with the expression of its value.
        remove: Fields to remove, such as payment.card.
    """

    to: Expression | None = None
    set: dict[MessageField, Expression] = {}
    remove: list[MessageField] = []

    def build(self, kit: "Kit") -> StepAction:
        if self.to is None and not self.set and not self.remove:
            kit.mistake("", "map changes nothing: give to:, set: or remove:")

        async def run(message: PipelineMessage, _: "PipelineCall") -> PipelineMessage:
            result = message if self.to is None else message.with_data(self.to(message))
            values = {path: find(message) for path, find in self.set.items()}
            for path, value in values.items():
                result = result.with_field(path, value)
            for path in self.remove:
                result = result.without_field(path)
            return result

        return run


class FilterStep(StepSettings):
    """Let some messages pass. Others end here, and count as done.

    Attributes:
        where: What must be true for a message to pass.
    """

    where: Expression

    def build(self, kit: "Kit") -> StepAction:
        async def run(message: PipelineMessage, _: "PipelineCall") -> PipelineMessage | None:
            return message if self.where.holds(message) else None

        return run


class SwitchCase(Settings):
    """A case of a switch.

    Attributes:
        when: What must be true for this case.
        steps: The steps of this case.
    """

    when: Expression
    steps: StepList


class SwitchStep(StepSettings):
    """Do the steps of the first case that is true. If none is, the message continues unchanged.

    Attributes:
        cases: The cases, in order.
        otherwise: The steps if no case is true.
    """

    cases: Annotated[list[SwitchCase], Meta(min_length=1)]
    otherwise: StepList = StepList()

    def build(self, kit: "Kit") -> StepAction:
        cases = [(case.when, kit.chain(case.steps)) for case in self.cases]
        otherwise = kit.chain(self.otherwise) if self.otherwise else None

        async def run(message: PipelineMessage, call: "PipelineCall") -> PipelineMessage | None:
            for when, steps in cases:
                if when.holds(message):
                    return await steps(message, call)
            return message if otherwise is None else await otherwise(message, call)

        return run


class EachStep(StepSettings):
    """Do some steps for each item of a list, one after the other.

    A record has room for some hundred effects. For longer lists, put a guard around the steps of each item.

    The record knows an item by its number. If a deploy changes the list or its order, what is recorded of an item counts
    for the one that now has its number, in messages that are half done. A guard with a key of the item prevents that.

    In these steps, ``message`` is the item, ``meta.index`` the item's number from 0, and ``meta.outer`` the message
    with the list.

    Attributes:
        items: The list.
        steps: What happens to each item.
        to: The field of the message for the list of resulting items.
    """

    items: Expression
    steps: StepList
    to: MessageField | None = None

    def build(self, kit: "Kit") -> StepAction:
        steps = kit.chain(self.steps)

        async def run(message: PipelineMessage, call: "PipelineCall") -> PipelineMessage:
            items, results = self.items(message), []
            if not isinstance(items, list):
                raise ValueError(f"{self.items.expression!r} finds no list in this message")
            for number, item in enumerate(items):
                meta = {**message.meta, "index": number, "outer": message.data}
                one = await steps(PipelineMessage(item, meta, (*message.at, number)), call)
                if one is not None:
                    results.append(one.data)
            return message if self.to is None else message.with_field(self.to, results)

        return run


class GuardStep(InnerGuardSettings, StepSettings, kw_only=True):
    """Do some steps once for each key. The record keeps the resulting message, so one that is larger than the ledger's `max_result` fails.

    Attributes:
        steps: The guarded steps.
        on_duplicate: What happens to another message with the same key. replay: it continues with the recorded message.
            drop: it ends here. The message that made the record always continues, also after a crash.
        to: The field for the result of the steps; the rest of the message does not change. By default the result
            replaces the whole message, also for another message with this key.
    """

    steps: StepList
    on_duplicate: Literal["replay", "drop"] = "replay"
    to: MessageField | None = None

    def build(self, kit: "Kit") -> StepAction:
        guard = InnerGuard(kit, self, self.name or kit.named or "guard", drops=self.on_duplicate == "drop")
        steps = kit.chain(self.steps, guarded=True, within="", around=kit.within or kit.around)

        async def run(message: PipelineMessage, call: "PipelineCall") -> PipelineMessage | None:
            result = await guard.run(message, call, steps)
            return result if result is None or self.to is None else message.with_field(self.to, result.data)

        return run


class SendStep(StepSettings):
    """Send the message to a sink, and continue with it.

    Attributes:
        to: The sink: one type and its settings.
    """

    to: SinkChoice

    def build(self, kit: "Kit") -> StepAction:
        return kit.sink(self.to)
