"""What a step is. A new one is a class in a file of its own, and a line in ``STEPS``."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar

from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Settings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit

# None drops the message.
StepAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[PipelineMessage | None]]
# Returns the result of an effect: what JSON can hold.
EffectAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[Any]]


class StepFailed(Exception):
    """A step failed. Its text says why."""


class StepNotMade(StepFailed):
    """A step failed, and its effect was certainly not made. With ``on_lapse: park``, the key can then be retried."""


class StepSettings(Settings):
    """A step without an effect outside. It is not recorded, so it must give the same result for the same message."""

    @property
    def title(self) -> str:
        """Return what names it in errors, and an effect in the record."""
        return type(self).__name__.removesuffix("Step").lower()

    @abstractmethod
    def build(self, kit: "Kit") -> StepAction:
        """Check the settings, and return what does it. No request is made, and nothing is raised: ``kit`` notes mistakes."""


class EffectSettings(StepSettings):
    """A step with an effect outside. The engine records its result, so a later attempt does not make it again."""

    replaces: ClassVar[bool] = False  # whether its result is the new message; null then drops it
    records: ClassVar[bool] = True  # False: the action records itself, with call.claim under the name call.step

    @abstractmethod
    def build(self, kit: "Kit") -> EffectAction:
        """Check the settings, and return what makes the effect. It makes no request itself."""
