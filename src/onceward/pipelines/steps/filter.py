"""The step ``filter``."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression
from onceward.pipelines.steps.contract import StepAction, StepSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class FilterStep(StepSettings):
    """Let some messages pass. Others end here, and count as done."""

    where: Annotated[Expression, Meta(description="What must hold for a message to pass.")]

    def build(self, kit: "Kit") -> StepAction:
        where = kit.expression("where", self.where)

        async def run(message: PipelineMessage, _: "PipelineCall") -> PipelineMessage | None:
            return message if where.holds(message) else None

        return run
