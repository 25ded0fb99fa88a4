"""The step ``each``."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression, StepList
from onceward.pipelines.steps.contract import StepAction, StepSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class EachStep(StepSettings, kw_only=True):
    """Do some steps for each item of a list, one after the other.

    A record has room for some hundred effects. For longer lists, put a guard around the steps of each item.

    In these steps, ``message`` is the item, ``meta.index`` its number from 0, and ``meta.outer`` the message that it was in.
    """

    items: Annotated[Expression, Meta(description="The list.")]
    steps: Annotated[StepList, Meta(description="What happens to each item.")]
    to: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The field of the message that takes the list of what is left of the items."),
    ] = None

    def build(self, kit: "Kit") -> StepAction:
        if self.to is not None:
            kit.place("to", self.to)
        items, steps = kit.expression("items", self.items), kit.chain("steps", self.steps)

        async def run(message: PipelineMessage, call: "PipelineCall") -> PipelineMessage:
            found, left = items(message), []
            if not isinstance(found, list):
                raise ValueError(f"{self.items!r} finds no list in this message")
            for number, item in enumerate(found):
                meta = {**message.meta, "index": number, "outer": message.data}
                one = await steps(PipelineMessage(item, meta, (*message.at, number)), call)
                if one is not None:
                    left.append(one.data)
            return message if self.to is None else message.with_field(self.to, left)

        return run
