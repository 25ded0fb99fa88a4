"""What a source is. A new one is a class, and a line in ``SOURCES``."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from onceward.pipelines.settings import Settings

if TYPE_CHECKING:
    from onceward.pipelines.flow import Flow
    from onceward.pipelines.kit import Kit


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
