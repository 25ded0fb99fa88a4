"""What a sink is. A new one is a class, and a line in ``SINKS``."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from onceward.pipelines.call import PipelineMessage
from onceward.pipelines.settings import Settings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit

SinkAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[None]]


class SinkSettings(Settings):
    """Where messages go.

    Most sinks stand on the outbox: their action is ``call.send(address, message.data)``, and the message leaves exactly when the
    claim completes. Others return when what they wrote is durable.
    """

    @property
    def title(self) -> str:
        """Return what names it by default."""
        return type(self).__name__.removesuffix("Sink").lower()

    @abstractmethod
    def build(self, kit: "Kit") -> SinkAction:
        """Check the settings, and return what takes a message. No request is made, and ``kit`` notes mistakes."""
