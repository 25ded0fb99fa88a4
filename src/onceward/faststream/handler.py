"""The decorator of FastStream's handlers, and what their results are published with."""

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, Unpack, cast

from fast_depends.dependencies import Dependant
from fast_depends.library import CustomField
from faststream import BaseMiddleware
from faststream._internal.configs import BrokerConfig
from faststream._internal.endpoint.call_wrapper import HandlerCallWrapper  # it has no public name
from faststream.exceptions import IgnoredException, NackMessage, SetupError
from faststream.response import PublishCommand, Response

from onceward.batch.batch import Batch
from onceward.batch.outcomes import BatchOutcome
from onceward.claim.behind import revealing
from onceward.claim.factory import refuse_guarded
from onceward.claim.guard import Guard
from onceward.claim.replays import CallOutcome
from onceward.consumers.broker import bounded
from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.delivery import Backoff, Delivery, MalformedRecord
from onceward.consumers.reader import DeliveryReader
from onceward.consumers.worker import PAUSES
from onceward.core.origin import PARENT, headers_for, provenance_in
from onceward.core.policy import Options
from onceward.errors import OncewardError
from onceward.faststream.settlement import HandlerCall, Settlement, Settling, config_of, settlement_of
from onceward.keys.ledger_keys import derived_key
from onceward.keys.reading import KeySource
from onceward.keys.signatures import CallReader, filled_in
from onceward.observe.logs import logger
from onceward.once import Once, check_once

REPLY: Final = "reply"  # the part of the derived key of what a handler returns
DONE: Final = "onceward_done"  # the attribute of a message that is done, but for what is published


def reply(key: str, value: object) -> Response:
    """Return the result for a key as FastStream publishes it."""
    return Response(value, headers={**headers_for(key, None), KEY_HEADER: derived_key(key, (REPLY,))})


def add_replies(config: Any) -> None:
    """Let a broker's messages pass through :class:`Replies`, once."""
    if Replies not in config.broker_middlewares:
        config.add_middleware(Replies)


class Replies(BaseMiddleware):
    """Gives each place that a result goes to a key of its own, and lets a message come again later if a publisher fails."""

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: PublishCommand) -> Any:
        """Publish a result, under the same key each time."""
        parent = cmd.headers.get(PARENT)
        if parent is not None and cmd.headers.get(KEY_HEADER) == derived_key(parent, (REPLY,)):
            exchange = getattr(getattr(cmd, "exchange", None), "name", None) or ""
            key = derived_key(parent, (REPLY, f"{exchange}/{cmd.destination}"))
            ids = {"Nats-Msg-Id": key} if type(cmd).__name__ == "NatsPublishCommand" else {}
            headers = {**cmd.headers, KEY_HEADER: key, **ids}  # the dict itself is that of all publishers
            cmd.headers = self._writable(headers) if type(cmd).__name__ == "RedisPublishCommand" else headers
        return await call_next(cmd)

    def _writable(self, headers: dict[str, Any]) -> dict[str, Any]:
        from onceward.faststream.on_redis import writable_headers  # only who has Redis' client can import it

        config = config_of(self.context.get_local("handler_"))
        return writable_headers(headers, config.message_format)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Let a message come again after a pause if its result was not published; FastStream would ask for it at once."""
        done = getattr(self.context.get_local("message"), DONE, None)
        if done is not None and isinstance(exc_val, Exception) and not isinstance(exc_val, IgnoredException):
            settlement, message, delivery = done
            await settlement.settle(delivery, BatchOutcome("failed", delivery, None, error=exc_val))
            await settlement.close(message)
        return False


P = ParamSpec("P")
R = TypeVar("R")
_CALL: Final[ContextVar[HandlerCall]] = ContextVar("onceward_faststream_call")


def exactly(
    once: Once,
    *,
    key: KeySource,
    fingerprint: KeySource | bool | None = None,
    name: str | None = None,
    backoff: tuple[float, float] = PAUSES,
    dead: str | None = None,
    order: bool = False,
    concurrency: int = 1,
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Guard a handler of FastStream. Put it right above the function, under ``@broker.subscriber(...)``.

    What the handler returns is published by ``@broker.publisher`` and as a reply; for a duplicate it is the recorded result, under
    the same header ``Idempotency-Key``. Under a subscriber with ``batch=True`` the function still takes one message: those of a batch
    are claimed together and recorded together.

    A busy message comes again when the other worker's lease ends. A failed message comes again after a pause. A message
    that cannot be handled goes to the dead letters, and its headers say why.

    Args:
        once: the ledger and the defaults of the policy.
        key: a JMESPath expression that begins with a parameter of the handler, such as ``order.id``, or a callable that gets the
            arguments that it names.
        fingerprint: the same, or True for all arguments that FastStream does not fill in: what must not change under one key.
        name: the namespace of the keys; by default the function's module and qualified name.
        backoff: the first and the longest pause after a failure, in seconds.
        dead: the subject, stream, queue or topic of the dead letters; by default the source's name and ``.onceward-dead``.
        order: whether a message that is not done holds back those behind it (docs/reference/faststream.md).
        concurrency: how many messages of a batch run at a time.
        **options: see :class:`onceward.Policy`. ``on_busy`` can be a number of seconds.

    Raises:
        ValueError, TypeError: an option is not valid, or does not fit the handler.
        SetupError: of FastStream, when the broker starts: the subscriber's settings lose messages.
    """
    check_once(once, "@exactly({}, key='order.id')")
    policy = bounded(once.guards.policy(options))
    if policy.on_busy == "skip":
        raise ValueError('on_busy="skip" would acknowledge a message that is not done: leave it out')
    options = {**options, "max_attempts": policy.max_attempts}
    settling = Settling(Backoff(*backoff), dead, order, policy)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, HandlerCallWrapper):
            raise TypeError("put @exactly right above the function, under all decorators of the broker")
        refuse_guarded(function)
        guard, handler = once.guards.for_function(function, name, options, keeps=True)
        filled = filled_in(function, (Dependant, CustomField))
        reader = CallReader(function, key, fingerprint, handler.claim, filled=filled)

        def batch() -> Batch:
            return Batch(
                once.guards,
                function,
                DeliveryReader(function, key, fingerprint).read,
                name=name,
                concurrency=concurrency,
                group=(lambda delivery: delivery.group) if order else None,
                values=False,
                **options,
            )

        return GuardedHandler(guard, function, reader, settling, batch, is_async=handler.is_async)

    return decorate


class _Subscribers(list[Any]):
    """The subscribers of a handler. FastStream appends each, and tells nobody else of it."""

    def __init__(self, prepare: Callable[[Any], Awaitable[None]]) -> None:
        super().__init__()
        self._prepare = prepare

    def append(self, subscriber: Any) -> None:
        """Add a subscriber, which prepares its source when it starts."""
        start = subscriber.start

        async def prepared_start() -> None:  # its broker is connected by then
            await self._prepare(subscriber)
            await start()

        subscriber.start = prepared_start
        super().append(subscriber)


class GuardedHandler(HandlerCallWrapper[P, R]):
    """A handler that FastStream calls once for each key. FastStream keeps this wrapper instead of making one."""

    def __init__(
        self,
        guard: Guard,
        function: Callable[P, R],
        reader: CallReader,
        settling: Settling,
        new_batch: Callable[[], Batch],
        *,
        is_async: bool,
    ) -> None:
        self._guard, self._function, self._is_async = guard, function, is_async
        self._reader, self._read = reader, reader.under(guard.name)
        self._settling, self._new_batch = settling, new_batch
        self._batch: Batch | None = None  # of a subscriber with batch=True
        self._settlements: dict[int, Settlement] = {}  # by the subscriber's id
        super().__init__(cast("Callable[P, R]", self._under_call()), BrokerConfig())
        self._subscribers = _Subscribers(self._prepare)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler without a broker: once for its key, or raise why not."""
        key, mark = self._read(args, kwargs)
        call = self._guard.call_async if self._is_async else self._guard.call
        return cast("R", call(key, mark, self._function, args, kwargs))

    def set_wrapped(self, **build: Any) -> Any:
        """Prepare a start: FastStream calls this before a subscriber begins."""
        if build["config"].get_dependent is not None:
            raise SetupError(
                "FastStream's routers for FastAPI bind parameters in their own way: put @exactly under a plain broker"
            )
        for subscriber in self._subscribers:
            self._settled(subscriber)
            add_replies(config_of(subscriber))
        self._recorder._outer_config = config_of(self._subscribers[0])  # noqa: SLF001 - it had none when it was made
        return super().set_wrapped(**build)

    async def _prepare(self, subscriber: Any) -> None:
        self._settlements.pop(id(subscriber), None)  # of an earlier start
        await self._settled(subscriber).prepare()

    def _settled(self, subscriber: Any) -> Settlement:
        """Return the settlement of a subscriber; raises SetupError if its settings lose messages."""
        if (settlement := self._settlements.get(id(subscriber))) is not None:
            return settlement
        settlement = settlement_of(subscriber, self._settling)
        settlement.check(self._subscribers)
        if settlement.batched and self._publishers:
            raise SetupError(f"{settlement.source}: results of a batch are not published; use claim.send() instead")
        if settlement.batched:
            self._batch = self._batch or self._new_batch()
        self._settlements[id(subscriber)] = settlement
        return settlement

    async def call_wrapped(self, message: Any) -> Any:
        """Handle a message, and settle it unless it is done; FastStream acknowledges it after what it publishes."""
        settlement = self._current()
        deliveries = settlement.deliveries(message)
        if self.is_test and settlement.batched:
            await self._recorder.record(message)
        if settlement.batched:
            await self._handle_batch(settlement, deliveries)
            await settlement.close(message)
            message.reply_to = ""  # several results are no reply
            return None
        if not await settlement.ready(deliveries[0]):
            await settlement.close(message)
            raise NackMessage
        run = HandlerCall(deliveries[0])
        _CALL.set(run)
        assert self._wrapped_call is not None
        try:
            run.body = await settlement.check_payload(message, run.delivery)
            if self.is_test:
                await self._recorder.record(message)
            outcome: CallOutcome[object] = await self._wrapped_call(message)
        except IgnoredException:
            raise  # the handler itself tells FastStream what to do
        except Exception as error:
            answer = await settlement.settle_failed(message, run, error)
            if answer is error:
                raise
            raise answer from error
        assert run.key is not None
        setattr(message, DONE, (settlement, message, run.delivery))
        return reply(run.key, outcome.value)

    async def _handle_batch(self, settlement: Settlement, deliveries: list[Delivery]) -> None:
        assert self._batch is not None
        ready = [delivery for delivery in deliveries if await settlement.ready(delivery)]
        for outcome in await self._batch.run_async(ready):
            delivery: Any = outcome.record
            if outcome.status == "failed":
                logger().error("%s: message %s failed", settlement.source, delivery.id, exc_info=outcome.error)
            await settlement.settle(delivery, outcome)

    def _current(self) -> Settlement:
        """Return the settlement of the subscriber that handles the current message."""
        for settlement in self._settlements.values():
            if settlement.config.context.get_local("handler_") is settlement.subscriber:
                return settlement
        raise SetupError("this handler has no subscriber that was started")

    def _under_call(self) -> Callable[..., object]:
        """Return the function as FastStream calls it, with the parameters that FastStream fills in."""
        function = revealing(self._function, lambda error: isinstance(error, IgnoredException))
        guarded = self._guard.call_async if self._is_async else self._guard.call

        def call(*args: object, **kwargs: object) -> Any:
            run = _CALL.get()
            try:
                run.key, mark = self._read(args, kwargs)
            except OncewardError:
                raise
            except Exception as error:  # a key's callable can raise anything
                raise MalformedRecord(f"no key can be made from the message: {type(error).__name__}") from error
            provenance = provenance_in(run.delivery.header)
            return guarded(
                run.key, mark, function, args, kwargs, whole=True, comes=run.delivery.comes, provenance=provenance
            )

        async def call_async(*args: object, **kwargs: object) -> Any:
            return await call(*args, **kwargs)

        call_once = wraps(function)(call_async if self._is_async else call)
        # Without the result's annotation, to which FastStream would convert the outcome.
        vars(call_once)["__signature__"] = self._reader.signature.replace(return_annotation=inspect.Signature.empty)
        return call_once
