"""What the sinks that stand on the outbox share: their message leaves exactly when its key is completed."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from onceward.outbox.targets import OutboxMessage, open_target
from onceward.pipelines.messages import PipelineMessage
from onceward.pipelines.settings import Expression, Seconds
from onceward.pipelines.sinks.contract import SinkAction, SinkSettings

if TYPE_CHECKING:
    from onceward.pipelines.call import PipelineCall
    from onceward.pipelines.kit import Field, Kit


class OutboxSink(SinkSettings, kw_only=True):
    """A target of the outbox."""

    message: Annotated[Expression, Meta(description="What is sent: a text as it is, all else as JSON.")] = "message"
    headers: Annotated[
        dict[str, Expression],
        Meta(
            description="Headers or attributes, if the target has them. A text is sent as it is, all else as JSON, and null not at all. "
            "The ledger keeps them until they are sent, so put no secret here."
        ),
    ] = {}

    @property
    def title(self) -> str:
        return self.address

    @property
    @abstractmethod
    def address(self) -> str:
        """The target's address in the outbox."""

    @property
    def place(self) -> "Field":
        """The field that the address is mostly made of, where its mistakes are."""
        return ""

    @property
    def ordering(self) -> tuple[Expression | None, Seconds | None]:
        """The group and the delay, if this kind of target has them."""
        return None, None

    def build(self, kit: "Kit") -> SinkAction:
        if not _is_fit(kit, self):
            return _nothing
        address = self.address
        find = kit.expression("message", self.message)
        finders = {name: kit.expression(("headers", name), text) for name, text in self.headers.items()}
        group_text, delay = self.ordering
        group = None if group_text is None else kit.expression("group", group_text)
        waits = None if delay is None else kit.seconds("delay", delay)

        async def send(message: PipelineMessage, call: "PipelineCall") -> None:
            found = {name: one(message) for name, one in finders.items()}
            headers = {name: text_of(value) for name, value in found.items() if value is not None}
            of = None if group is None else group(message)
            call.send(
                address, find(message), delay=waits, group=None if of is None else text_of(of), headers=headers or None
            )

        return send


def text_of(value: object) -> str:
    """Return a text as it is, and all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _nothing(_message: PipelineMessage, _call: "PipelineCall") -> None:
    pass


def _is_fit(kit: "Kit", sink: OutboxSink) -> bool:
    """Note what is wrong with the target: its library, its address, or what it never takes."""
    try:
        target = open_target(sink.address)
    except (ValueError, TypeError, ImportError) as error:
        kit.mistake(sink.place, str(error))
        return False
    group, delay = sink.ordering
    try:
        waits = None if delay is None else kit.seconds("delay", delay)
        # An empty object with the settings of this sink: a target refuses what it never takes.
        target.check(
            OutboxMessage("0" * 36, "{}", dict.fromkeys(sink.headers, "x"), waits, None if group is None else "g")
        )
    except (ValueError, TypeError) as error:
        kit.mistake("", str(error))
        return False
    if "outbox" not in kit.once.store.capabilities:
        kit.mistake("", "this ledger cannot hold messages with a record (docs/reference/outbox.md): use another ledger")
        return False
    return True
