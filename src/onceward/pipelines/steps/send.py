"""The step ``send``."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.pipelines.settings import SinkChoice
from onceward.pipelines.steps.contract import StepAction, StepSettings

if TYPE_CHECKING:
    from onceward.pipelines.kit import Kit


class SendStep(StepSettings):
    """Send the message to a sink, and go on with it."""

    to: Annotated[SinkChoice, Meta(description="The sink: one type and its settings.")]

    def build(self, kit: "Kit") -> StepAction:
        return kit.sink("to", self.to)
