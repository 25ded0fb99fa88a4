"""The step ``lookup``."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from onceward.pipelines.keyvalue.contract import Values, opened
from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.paths import PathFinder
from onceward.pipelines.settings import Expression
from onceward.pipelines.steps.contract import EffectAction, EffectSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class LookupStep(EffectSettings, kw_only=True):
    """Look up a value by its key. The result is the value, or a list for a set, or null.

    It is recorded, so a later attempt goes on with the same value.
    """

    at: Annotated[
        str,
        Meta(
            description="Where: redis://host/0, dynamodb://TABLE, sqlite:///file.db, postgresql://user@host/db, mysql://user@host/db, "
            "csv:file.csv?key=COLUMN&value=COLUMN or json:file.json.",
            min_length=1,
        ),
    ]
    key: Annotated[Expression, Meta(description="The key.")]
    space: Annotated[str, Meta(description="What tells these keys from others in the same place.", max_length=100)] = ""

    @property
    def title(self) -> str:
        return f"lookup {self.space or self.at.partition(':')[0]} {self.key}"

    def build(self, kit: "Kit") -> EffectAction:
        values = opened(kit, "at", self.at, self.space, writes=False)
        key = kit.expression("key", self.key)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            assert values is not None
            return await call.thread(_got, values, name_of(key, message))

        return make


def name_of(find: PathFinder, message: PipelineMessage) -> str:
    """Return the key that an expression finds, as a text.

    Raises:
        ValueError: it finds nothing, or "".
    """
    found = find(message)
    if found is None or found == "":
        raise ValueError(f"{find.expression!r} finds no key in this message")
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def _got(values: Values, key: str) -> Any:
    return values.get(key)
