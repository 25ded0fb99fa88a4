"""The step ``switch``."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression, Settings, StepList
from onceward.pipelines.steps.contract import StepAction, StepSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class SwitchCase(Settings, kw_only=True):
    """A case of a switch."""

    when: Annotated[Expression, Meta(description="What must hold.")]
    steps: Annotated[StepList, Meta(description="The steps of this case.")]


class SwitchStep(StepSettings, kw_only=True):
    """Do the steps of the first case that holds. Without one, the message goes on as it is."""

    cases: Annotated[list[SwitchCase], Meta(description="The cases, in order.", min_length=1)]
    otherwise: Annotated[StepList, Meta(description="The steps if no case holds.")] = StepList()

    def build(self, kit: "Kit") -> StepAction:
        cases = [
            (kit.expression(("cases", number, "when"), case.when), kit.chain(("cases", number, "steps"), case.steps))
            for number, case in enumerate(self.cases)
        ]
        otherwise = kit.chain("otherwise", self.otherwise) if self.otherwise else None

        async def run(message: PipelineMessage, call: "PipelineCall") -> PipelineMessage | None:
            for when, steps in cases:
                if when.holds(message):
                    return await steps(message, call)
            return message if otherwise is None else await otherwise(message, call)

        return run
