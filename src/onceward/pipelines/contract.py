"""What steps, sinks and sources are. A new one is a class, and a line in ``STEPS``, ``SINKS`` or ``SOURCES``."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol

from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepAction
from onceward.pipelines.flow import Flow
from onceward.pipelines.kit import Kit
from onceward.pipelines.settings import Settings


class Runs(Protocol):
    """What brings deliveries until it is stopped. Every :class:`onceward.consumers.worker.Worker` is one."""

    @property
    def in_flight(self) -> int:
        """How many messages are held."""

    async def run_async(self, *, until_empty: bool = False) -> None:
        """Run until :meth:`stop`, or with ``until_empty`` until nothing is left."""

    def stop(self) -> None:
        """Take nothing more, and end when what runs ends; from any thread."""


class SourceSettings(Settings):
    """Where messages come from."""

    has_ids: ClassVar[bool] = True  # False: deliveries have no key of their own, so the file needs a guard
    keeps: ClassVar[str | None] = None  # what names keys of its own, behind the pipeline's name: no guard can have it
    holds: ClassVar[bool] = True  # whether it can wait while the key of hold: is held
    ends: ClassVar[bool] = False  # whether it has an end, as a file has

    def check(self, kit: "Kit") -> None:
        """Note mistakes and missing extras. It makes no request."""

    @abstractmethod
    def open(self, flow: "Flow") -> Runs:
        """Return what brings the deliveries to ``flow``."""


SinkAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[None]]


class SinkSettings(Settings):
    """Where messages go.

    Most sinks stand on the outbox: their action is ``call.claim.send(address, message.data, key=call.step)``, and the message leaves exactly when the
    claim completes. Others return when what they wrote is durable.
    """

    @property
    def title(self) -> str:
        """Return what names it by default."""
        return type(self).__name__.removesuffix("Sink").lower()

    @abstractmethod
    def build(self, kit: "Kit") -> SinkAction:
        """Check the settings, and return what takes a message. No request is made, and ``kit`` notes mistakes."""


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
