"""What a step is. A new one is a class, and a line in ``STEPS``."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from onceward.pipelines.call import EffectAction, StepAction
from onceward.pipelines.settings import Settings

if TYPE_CHECKING:
    from onceward.pipelines.kit import Kit


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
