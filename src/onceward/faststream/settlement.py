"""What becomes of a message after its outcome: the same for all brokers, in each broker's own terms."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from traceback import walk_tb
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from fast_depends.core import CallModel
from fast_depends.exceptions import ValidationError
from fast_depends.library import CustomField
from fast_depends.library.serializer import Serializer
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, SetupError
from pydantic import ValidationError as ModelError

from onceward.batch.outcomes import BatchOutcome, Status
from onceward.batch.report import log_malformed
from onceward.consumers.dead_letters import dead_headers, dead_name, is_unhandled
from onceward.consumers.delivery import Backoff, Delivery, MalformedRecord, time_away
from onceward.core.policy import Policy
from onceward.errors import Busy, KeyMissing, Mismatch, OncewardError, Parked, ResultUnavailable, StoreError
from onceward.keys.json_reading import without_mark
from onceward.lazily import at
from onceward.observe.logs import logger
from onceward.results.outcomes import describe

_BATCHES: Final = {"BatchPullStreamSubscriber", "BatchSubscriber", "StreamBatchSubscriber"}  # of NATS, Kafka and Redis
_TROUBLE: Final = 5.0  # seconds until a ledger that gave no answer is asked again
NACK: Final = "give ack_policy=AckPolicy.NACK_ON_ERROR"
_HOMES: Final = {
    "nats": "onceward.faststream.on_nats:NatsSettlement",
    "redis": "onceward.faststream.on_redis:RedisSettlement",
    "rabbit": "onceward.faststream.on_rabbit:RabbitSettlement",
    "kafka": "onceward.faststream.on_kafka:KafkaSettlement",
}
_AT: Final = re.compile(r"(?:`\$\.|required field `)(\w+)")  # where msgspec found an error: the argument comes last


def _without_marks(body: Any) -> Any:
    """Return the body of a message, or those of a batch, without byte order marks, which some readers of JSON refuse."""
    if isinstance(body, list):
        return [_without_marks(one) for one in body]
    return without_mark(body) if isinstance(body, bytes) else body


class Settling(NamedTuple):
    """The options of :func:`onceward.faststream.exactly` about messages that are not done."""

    backoff: Backoff
    dead: str | None
    order: bool
    policy: Policy


def config_of(subscriber: Any) -> Any:
    """Return the configuration of a subscriber."""
    return subscriber._outer_config  # noqa: SLF001 - FastStream has no other way to it


@dataclass
class HandlerCall:
    """One call of a handler. It has its key once the message was read. ``body`` is what FastStream decoded."""

    delivery: Delivery
    body: object = None
    key: str | None = None


class Settlement(ABC):
    """Settles the messages of one subscriber.

    Args:
        subscriber: FastStream's, of any kind. It has no public type.
        options: as :func:`onceward.faststream.exactly` got them.

    Attributes:
        source: the name of the queue, subject, stream or topic.
        dead: where its dead letters go.
    """

    allowed: ClassVar[frozenset[AckPolicy]] = frozenset({AckPolicy.NACK_ON_ERROR})

    def __init__(self, subscriber: Any, options: Settling) -> None:
        self.subscriber = subscriber
        self.backoff = options.backoff
        self.order = options.order
        self.policy = options.policy
        self.source = self.source_name()
        self.dead = options.dead or dead_name(self.source)

    @property
    def config(self) -> Any:
        """The configuration of its subscriber."""
        return config_of(self.subscriber)

    @property
    def batched(self) -> bool:
        """Whether its messages are batches."""
        return type(self.subscriber).__name__ in _BATCHES

    @abstractmethod
    def source_name(self) -> str:
        """Return the name of where messages come from."""

    @abstractmethod
    def losing(self, beside: Sequence[Any]) -> str | None:
        """Return which setting loses messages, and what to give instead; ``beside`` are the handler's subscribers."""

    @abstractmethod
    def deliveries(self, message: Any) -> list[Delivery]:
        """Return the deliveries of a message: one, or all of a batch."""

    def readable(self, raw: Any) -> Any:
        """Return a message of the broker's client as FastStream can parse it. One that it cannot parse is lost."""
        return raw

    async def prepare(self) -> None:  # noqa: B027 - some brokers need nothing
        """Make what is missing beside the source, before its first message. Warn if it keeps messages for longer than their keys.

        Raises:
            SetupError: it cannot be made.
        """

    async def ready(self, delivery: Delivery) -> bool:
        """Return whether a message can be handled now. If not, it comes again, or is another group's."""
        return True

    @abstractmethod
    async def receives(self, delivery: Delivery) -> int:
        """Return how often a message was received, including this time."""

    @abstractmethod
    async def acknowledge(self, delivery: Delivery) -> None:
        """Remove one message for good."""

    @abstractmethod
    async def give_back(self, delivery: Delivery, seconds: float, receives: int) -> None:
        """Let one message come again in ``seconds``."""

    async def wait(self, delivery: Delivery, seconds: float, receives: int) -> None:
        """Let one message come again while the ledger is away: it was not claimed."""
        await self.give_back(delivery, seconds, receives)

    @abstractmethod
    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> None:
        """Send one message to the dead letters; return when the broker has stored it."""

    async def close(self, message: Any) -> None:  # noqa: B027 - most brokers' messages remember that they are settled
        """Keep FastStream from settling a message again."""

    def check(self, beside: Sequence[Any]) -> None:
        """Raise SetupError if the subscriber's settings lose messages."""
        fault = self.losing(beside)
        if fault is None and self.subscriber.ack_policy not in self.allowed:
            fault = f"ack_policy {self.subscriber.ack_policy.value!r} loses messages whose handler fails: {NACK}"
        if fault is not None:
            raise SetupError(f"{self.source}: {fault} (docs/reference/faststream.md)")
        self._parse_all()

    def _parse_all(self) -> None:
        """Let FastStream parse each message of the subscriber."""
        parse = self.subscriber._parser  # noqa: SLF001 - FastStream has no other way to it
        parse = getattr(parse, "onceward_parse", parse)  # after another start

        async def parse_readable(raw: Any) -> Any:
            message = await parse(self.readable(raw))
            message.raw_message = raw
            message.body = _without_marks(message.body)
            return message

        vars(parse_readable)["onceward_parse"] = parse
        self.subscriber._parser = parse_readable  # noqa: SLF001 - as above

    async def check_payload(self, message: Any, delivery: Delivery) -> object:
        """Return the decoded payload; refuse one that cannot be read, or that FastStream would read, and other readers of JSON otherwise.

        Raises:
            MalformedRecord: it cannot be read, or readers of JSON do not agree about it.
        """
        kind = message.content_type or ""
        if delivery.body and "text" not in kind:
            delivery.read()
            if delivery.not_json is not None and "json" in kind:
                raise MalformedRecord(f"the payload is {delivery.not_json}") from delivery.not_json
        try:
            return await message.decode()
        except Exception as error:  # a decoder can be anybody's
            why = delivery.not_json or type(error).__name__  # its text may quote the payload
            raise MalformedRecord(f"the payload cannot be decoded: {why}") from None

    async def settle(self, delivery: Delivery, outcome: BatchOutcome) -> None:
        """Acknowledge a message, let it come again, or send it to the dead letters."""
        if outcome.ok:
            await self.acknowledge(delivery)
            return
        receives = await self.receives(delivery)
        away = time_away(outcome, receives, self.backoff, goes=False)
        if isinstance(outcome.error, StoreError):
            logger().warning("%s: message %s waits for the ledger: %s", self.source, delivery.id, outcome.error)
            await self.wait(delivery, min(away, _TROUBLE), receives)
            return
        kind = type(outcome.error).__name__  # its text may quote the payload
        by_status = {"failed": kind, "malformed": kind, "parked": f"{kind}. `onceward show {outcome.key}` says why"}
        why = by_status.get(outcome.status, outcome.error)
        says, again = None, f"comes again in {away:.0f} s"
        if is_unhandled(outcome):
            try:
                await self.dead_letter(delivery, dead_headers(outcome, self.source, receives))
                await self.acknowledge(delivery)
            except Exception as error:
                says = f"{again}, because the dead letters {self.dead} do not take it: {describe(error)}"
            else:
                again, says = "", f"goes to {self.dead}: {why}"
        elif self.order or outcome.status == "failed":
            says = f"{again}{', and holds back those behind it (order=True)' if self.order else ''}: {why}"
        if says is not None:
            logger().warning("%s: message %s is %s, and %s", self.source, delivery.id, outcome.status, says)
        if not again:
            return
        await self.give_back(delivery, away, receives)

    async def settle_failed(self, message: Any, run: HandlerCall, error: Exception) -> Exception:
        """Settle a message whose call raised ``error``; return what FastStream must see."""
        status = status_of(error, self.policy, run)
        if status == "done":
            return AckMessage()
        if status == "malformed":
            log_malformed(run.delivery, error)
        await self.settle(run.delivery, BatchOutcome(status, run.delivery, run.key, error=error))
        await self.close(message)
        return NackMessage() if status == "busy" else error


def status_of(error: Exception, policy: Policy, run: HandlerCall) -> Status:
    """Return the outcome's status of a call that raised ``error``."""
    if run.key is None:
        unreadable = isinstance(error, MalformedRecord | KeyMissing) or _is_of_message(error, run.body)
        return "malformed" if unreadable else "failed"
    if isinstance(error, OncewardError) and getattr(error, "key", run.key) != run.key:
        return "failed"  # the handler itself called another guarded function
    if isinstance(error, (*policy.final, ResultUnavailable)):
        return "done"  # it is the recorded outcome, or there is one that cannot be shown
    if isinstance(error, Busy):
        return "busy"
    if isinstance(error, Parked):
        return "parked"
    return "mismatch" if isinstance(error, Mismatch) else "failed"


def _is_of_message(error: Exception, body: object) -> bool:
    """Return whether FastStream's serializer refused a part of the message, and not what a dependency or a context gave."""
    refused = error.original_error if isinstance(error, ValidationError) else error
    if isinstance(refused, ModelError):
        arguments = {str(one["loc"][0]) for one in refused.errors() if one["loc"]}
    elif isinstance(refused, msgspec.ValidationError):
        arguments = set(_AT.findall(str(refused))[-1:])
    else:
        return False
    others: set[str] = set()  # the names that dependencies and contexts have filled
    for caller, frame in pairwise(frame for frame, _ in walk_tb(error.__traceback__)):
        model, inner = caller.f_locals.get("self"), frame.f_locals.get("self")
        if not isinstance(model, CallModel) or inner is model:
            continue
        if not isinstance(inner, CallModel):
            # The serializer: it has __call__ for arguments, and response() for what a dependency returns.
            others |= {name for name, field in model.custom_fields.items() if not _is_in_message(name, field)}
            others |= model.dependencies.keys() - _fields(body, frame.f_locals.get("call_kwargs", ()))
            return isinstance(inner, Serializer) and frame.f_code.co_name == "__call__" and not arguments <= others
        solved = caller.f_locals.get("kwargs", {}).keys()  # a later dependency gets by name what earlier ones gave
        others |= (model.dependencies.keys() & solved) - _fields(body, solved)
    return False


def _fields(body: object, arguments: Collection[str]) -> set[str]:
    """Return the fields of a body that are arguments, each in the place of a dependency of its name; none if the body is one argument."""
    return set(body) if isinstance(body, dict) and body.keys() <= set(arguments) else set()


def _is_in_message(name: str, field: CustomField) -> bool:
    """Return whether a parameter is a ``Header``, a ``Path``, or another ``Context`` of the message."""
    place: str = getattr(field, "prefix", "") + (getattr(field, "name", "") or name)
    return place.partition(".")[0] == "message"


def settlement_of(subscriber: Any, options: Settling) -> Settlement:
    """Return how the messages of a subscriber are settled; raises SetupError if its broker is not known."""
    kind = type(subscriber).__module__.split(".")[1]
    home = _HOMES.get(kind)
    if home is None:
        raise SetupError(f"onceward.faststream knows {', '.join(sorted(_HOMES))}, and not FastStream's {kind}")
    settlement: Settlement = at(home)(subscriber, options)
    return settlement
