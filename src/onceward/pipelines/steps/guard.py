"""The step ``guard``."""

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from onceward.pipelines.guards import InnerGuard
from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.model import InnerGuardSettings
from onceward.pipelines.settings import StepList
from onceward.pipelines.steps.contract import StepAction, StepSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class GuardStep(InnerGuardSettings, StepSettings, kw_only=True):
    """Do some steps once for each key. The record keeps the message as they leave it."""

    steps: Annotated[StepList, Meta(description="The guarded steps.")]
    on_duplicate: Annotated[
        Literal["replay", "drop"],
        Meta(
            description="What another message with the same key does. replay: it goes on with the recorded message. drop: it ends here. "
            "The message that made the record always goes on, also after a crash."
        ),
    ] = "replay"
    to: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="The field that takes what the steps leave; the rest of the message stays as it is. By default the message becomes "
            "what they leave, also what they left of another message with this key."
        ),
    ] = None

    def build(self, kit: "Kit") -> StepAction:
        guard = InnerGuard(kit, self, self.name or kit.named or "guard", self.on_duplicate)
        if self.to is not None:
            kit.place("to", self.to)
        steps = kit.chain("steps", self.steps, guarded=True, within="")

        async def run(message: PipelineMessage, call: "PipelineCall") -> PipelineMessage | None:
            left = await guard.run(message, call, steps)
            return left if left is None or self.to is None else message.with_field(self.to, left.data)

        return run
