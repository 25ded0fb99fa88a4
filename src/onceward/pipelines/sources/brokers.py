"""Queues as sources: each by the worker that onceward has for it. A field of the settings is the worker's argument of that name."""

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

from onceward.pipelines.flow import FlowWorker
from onceward.pipelines.settings import fields_of
from onceward.pipelines.sources.contract import SourceSettings

if TYPE_CHECKING:
    from onceward.pipelines.flow import Flow
    from onceward.pipelines.kit import Kit
    from onceward.pipelines.sources.contract import Runs


class WorkerSource(SourceSettings):
    """A queue. The first field names it."""

    worker: ClassVar[str]  # module:class
    library: ClassVar[tuple[str, str] | None] = None  # the module that it needs, and the extra that brings it

    def check(self, kit: "Kit") -> None:
        if self.library is not None and not kit.needs("", *self.library):
            return
        place, *options = self._given()
        try:
            self._worker()(kit.once, place[1], _nothing, **dict(options))
        except (ValueError, TypeError) as error:
            # Most errors begin with the argument that they are about.
            named = re.match(r"(\w+)=", str(error))
            fields = {name for name, _ in fields_of(type(self))}
            kit.mistake(named[1] if named is not None and named[1] in fields else "", str(error))

    def open(self, flow: "Flow") -> "Runs":
        place, *options = self._given()
        flowing: Any = type("Flowing", (FlowWorker, self._worker()), {})
        made = flowing(flow.once, place[1], flow.handler, **dict(options), **flow.options)
        made.flow = flow
        return cast("Runs", made)

    def _given(self) -> list[tuple[str, object]]:
        """Return the worker's arguments by name, that which names the queue first."""
        return [(name, getattr(self, name)) for name, _ in fields_of(type(self))]

    def _worker(self) -> Any:
        module, _, name = self.worker.partition(":")
        return getattr(import_module(module), name)


async def _nothing(message: Any) -> None:
    """Stand for the handler, while only the worker's arguments are checked."""
