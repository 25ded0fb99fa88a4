"""The step ``store``."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from onceward.pipelines.keyvalue.contract import Values, opened
from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression, Seconds
from onceward.pipelines.steps.contract import EffectAction, EffectSettings
from onceward.pipelines.steps.lookup import name_of

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Kit


class StoreStep(EffectSettings, kw_only=True):
    """Store a value by its key, or add it to a set. Twice is as good as once.

    The store's own clock judges when a value expires.
    """

    at: Annotated[
        str,
        Meta(
            description="Where: redis://host/0, dynamodb://TABLE, sqlite:///file.db, postgresql://user@host/db or mysql://user@host/db.",
            min_length=1,
        ),
    ]
    key: Annotated[Expression, Meta(description="The key.")]
    value: Annotated[Expression, Meta(description="The value.")] = "message"
    add: Annotated[bool, Meta(description="Whether to add the value to the set of this key.")] = False
    ttl: Annotated[Seconds | None, Meta(description="How long the value stays. By default for good.")] = None
    space: Annotated[str, Meta(description="What tells these keys from others in the same place.", max_length=100)] = ""

    @property
    def title(self) -> str:
        return f"store {self.space or self.at.partition(':')[0]} {self.key}"

    def build(self, kit: "Kit") -> EffectAction:
        values = opened(kit, "at", self.at, self.space, writes=True)
        key, find = kit.expression("key", self.key), kit.expression("value", self.value)
        ttl = None if self.ttl is None else kit.seconds("ttl", self.ttl, least=0.001)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            assert values is not None
            await call.thread(_stored, values, name_of(key, message), find(message), ttl, self.add)

        return make


def _stored(values: Values, key: str, value: Any, ttl: float | None, adds: bool) -> None:
    (values.add if adds else values.set)(key, value, ttl)
