"""Guards all subscribers of a broker, before FastStream binds the parameters of a handler."""

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack, cast

from faststream import BaseMiddleware
from faststream.exceptions import IgnoredException, NackMessage, SetupError
from faststream.message import SourceType
from faststream.response import Response

from onceward.claim.behind import revealing
from onceward.claim.replays import CallOutcome
from onceward.consumers.delivery import Backoff
from onceward.consumers.worker import PAUSES
from onceward.core.origin import provenance_in
from onceward.core.policy import Options
from onceward.faststream.handler import GuardedHandler
from onceward.faststream.replies import DONE, add_replies, reply
from onceward.faststream.settlement import (
    HandlerCall,
    Settlement,
    Settling,
    settlement_of,
    started_after,
    with_attempts,
)
from onceward.keys.ledger_keys import function_name, ledger_key
from onceward.keys.reading import KeyReader, KeySource
from onceward.keys.roots import Roots
from onceward.once import Once, check_once

if TYPE_CHECKING:
    from onceward.claim.guard import Guard

_ROOTS: Final = ("body", "headers", "message_id")
_NO_SKIP: Final = "a message that is not done must come again"


def guard_broker(
    broker: Any,
    once: Once,
    *,
    key: KeySource,
    fingerprint: KeySource | bool | None = None,
    backoff: tuple[float, float] = PAUSES,
    order: bool = False,
    **options: Unpack[Options],
) -> None:
    """Guard all handlers of a FastStream broker, as :func:`exactly` does one: call it before the broker starts.

    The key is read before FastStream binds a handler's parameters, so a path begins with ``body``, ``headers`` or
    ``message_id``. The namespace of the keys is each handler's module and qualified name. Handlers under ``@exactly`` are left out.

    Raises:
        ValueError, TypeError: an option is not valid.
        SetupError: of FastStream, when the broker starts: a subscriber's settings lose messages, it reads batches, or it has
            several handlers.
    """
    check_once(once, "guard_broker(broker, {}, key='body.id')")
    reader = KeyReader(key, fingerprint, Roots(_ROOTS, f"names none of {', '.join(_ROOTS)}", "body"))
    options = with_attempts(once, options)
    once.guards.for_keys(None, options, no_skip=_NO_SKIP)  # refuses wrong options now
    scope = BrokerScope(once, reader, Settling(Backoff(*backoff), None, order, once.guards.policy(options)), options)
    add_replies(broker.config)
    broker.add_middleware(partial(ExactlyMiddleware, scope))
    start: Callable[..., Any] = broker.start

    async def checked_start() -> None:
        for subscriber in broker.subscribers:
            scope.begin(subscriber)
        await start()

    broker.start = checked_start


class BrokerScope:
    """What the messages of one broker share."""

    def __init__(self, once: Once, reader: KeyReader, settling: Settling, options: Options) -> None:
        self._guards, self._options = once.guards, options
        self._settling = settling
        self._known: dict[int, GuardedSubscriber | None] = {}
        self.reader = reader

    def guarded(self, subscriber: Any) -> "GuardedSubscriber | None":
        """Return how a subscriber is guarded; None if its handler is guarded already, or it has none.

        Raises:
            SetupError: its settings lose messages, it reads batches, or it has several handlers.
        """
        if id(subscriber) not in self._known:
            self._known[id(subscriber)] = self._made(subscriber)
        return self._known[id(subscriber)]

    def begin(self, subscriber: Any) -> None:
        """Check a subscriber, which prepares its source when it starts; raises as :meth:`guarded`."""
        begun = id(subscriber) in self._known
        guarded = self.guarded(subscriber)
        if guarded is not None and not begun:

            async def prepare(_: Any) -> None:
                await guarded.settlement.prepare()

            started_after(subscriber, prepare)

    def _made(self, subscriber: Any) -> "GuardedSubscriber | None":
        handlers = [call.handler for call in subscriber.calls]
        if all(isinstance(handler, GuardedHandler) for handler in handlers):
            return None
        settlement = settlement_of(subscriber, self._settling)
        if len(handlers) > 1:  # else a message of one handler would be a duplicate of another one's
            raise SetupError(
                f"{settlement.source}: guard_broker cannot tell the handlers of one subscriber apart: put @exactly over each"
            )
        settlement.check(handlers[0]._subscribers)  # noqa: SLF001 - FastStream has no other way to them
        if settlement.batched:
            raise SetupError(f"{settlement.source}: guard_broker guards no batches: put @exactly over the handler")
        name = function_name(unwrap(handlers[0]._original_call))  # noqa: SLF001 - as above
        return GuardedSubscriber(settlement, self._guards.for_keys(name, self._options, no_skip=_NO_SKIP))


class GuardedSubscriber(NamedTuple):
    """One subscriber of a guarded broker."""

    settlement: Settlement
    guard: "Guard"


class ExactlyMiddleware(BaseMiddleware):
    """Handles each message of a guarded broker once."""

    def __init__(self, scope: BrokerScope, message: Any, /, *, context: Any) -> None:
        super().__init__(message, context=context)
        self._scope = scope

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: Any) -> Any:
        """Run the handler once for the message's key, or return the recorded result."""
        own = (
            msg.source_type is not SourceType.RESPONSE
        )  # the answer to a handler's own request is none of its messages
        guarded = self._scope.guarded(self.context.get_local("handler_")) if own else None
        if guarded is None:
            return await call_next(msg)
        settlement, guard = guarded
        (delivery,) = settlement.deliveries(msg)
        if not await settlement.ready(delivery):
            await settlement.close(msg)
            raise NackMessage
        run = HandlerCall(delivery)

        async def body() -> object:
            result = await call_next(msg)
            return result.body if isinstance(result, Response) else result

        try:
            await settlement.check_payload(msg, delivery)
            name = settlement.message_id(msg, delivery)
            seen = {"body": await msg.decode(), "headers": msg.headers, "message_id": name}
            run.key = ledger_key(guard.name, self._scope.reader.key(seen, seen))
            mark = self._scope.reader.fingerprint(seen, seen)
            run.begun = True
            told = provenance_in(run.delivery.header)
            found = await guard.call_async(
                run.key,
                mark,
                revealing(body, IgnoredException),
                (),
                {},
                whole=True,
                comes=run.delivery.comes,
                provenance=told,
            )
        except IgnoredException:
            raise
        except Exception as error:
            raised = await settlement.settle_failed(msg, run, error, guard.policy)
            if raised is error:
                raise
            raise raised from error
        setattr(msg, DONE, (settlement, msg, delivery))
        return reply(run.key, cast("CallOutcome[object]", found).value)
