"""The step ``map``."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression
from onceward.pipelines.steps.contract import StepAction, StepSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class MapStep(StepSettings):
    """Change the message. All expressions see it as it was before this step."""

    to: Annotated[Expression | None, Meta(description="The new message. By default it is the old one.")] = None
    set: Annotated[
        dict[str, Expression],
        Meta(description="Fields to set, such as payment.total, each with the expression of its value."),
    ] = {}
    remove: Annotated[list[str], Meta(description="Fields to remove, such as payment.card.")] = []

    def build(self, kit: "Kit") -> StepAction:
        whole = None if self.to is None else kit.expression("to", self.to)
        fields = [(path, kit.expression(("set", path), text)) for path, text in self.set.items()]
        for path, _ in fields:
            kit.place(("set", path), path)
        for number, path in enumerate(self.remove):
            kit.place(("remove", number), path)
        if whole is None and not fields and not self.remove:
            kit.mistake("", "map changes nothing: give to:, set: or remove:")

        async def run(message: PipelineMessage, _: "PipelineCall") -> PipelineMessage:
            found = message if whole is None else message.with_data(whole(message))
            values = [(path, find(message)) for path, find in fields]
            for path, value in values:
                found = found.with_field(path, value)
            for path in self.remove:
                found = found.without_field(path)
            return found

        return run
