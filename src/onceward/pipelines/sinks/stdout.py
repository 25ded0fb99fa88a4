"""The sink ``stdout``."""

from typing import TYPE_CHECKING

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.sinks.contract import SinkAction, SinkSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class StdoutSink(SinkSettings):
    """Print messages as lines of JSON.

    What a message prints is recorded with its key. A duplicate prints it again, so that a second run prints the whole output.
    """

    def build(self, kit: "Kit") -> SinkAction:
        async def write(message: PipelineMessage, call: "PipelineCall") -> None:
            call.printed.append(message.data)

        return write
