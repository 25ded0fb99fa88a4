"""Actors that take effect once: the decorator above ``@dramatiq.actor``.

Dramatiq's middleware is told before and after a call, but cannot make or skip it, so the actor's function is replaced. All else
stays Dramatiq's: its retries, time limits, results, pipelines and dead letters.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from dramatiq import Actor, Retry
from dramatiq.asyncio import async_to_sync
from dramatiq.middleware import CurrentMessage, Retries, Shutdown

from onceward.claim.held import held
from onceward.consumers.tasks import GuardedTask, TaskCall, TaskEnd, TaskOptions
from onceward.dramatiq.consuming import Resending, mend_consumers
from onceward.observe.logs import logger
from onceward.outbox.tasks import TaskJobs

if TYPE_CHECKING:
    from dramatiq import Broker, Message

    from onceward.once import Once

A = TypeVar("A", bound="Actor[..., object]")
Function = Callable[..., object]
RetryWhen = Callable[[int, BaseException], bool]

_LONGEST: Final = 7 * 86400.0  # seconds; Dramatiq's brokers delay no message for longer


class _ComesAgain(Retry):
    """The message comes again later. It is no retry of Dramatiq's."""


def exactly(once: "Once", **options: Unpack[TaskOptions]) -> Callable[[A], A]:
    """Make an actor take effect once: ``@exactly(once, key="order.id")`` above ``@dramatiq.actor``.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`onceward.consumers.tasks.TaskOptions`. By default the key is the message's id.

    Returns:
        A decorator for the actor, which it returns.

    Raises:
        ValueError, TypeError: an option is not valid or does not fit the actor, or its broker would lose messages. Raised
            when decorating.
    """

    def decorate(actor: A) -> A:
        if not isinstance(actor, Actor):
            raise TypeError(f"{actor!r} is not an actor: write @exactly(once, ...) above @dramatiq.actor")
        _check(actor.broker, actor.actor_name)
        resending = _resending(actor.broker)
        function = own_function(actor)
        guarded = GuardedTask(once, function, "dramatiq", _is_retry, **options)
        call = async_to_sync(guarded.call_async) if guarded.is_async else guarded.call
        if not any(isinstance(middleware, CurrentMessage) for middleware in actor.broker.middleware):
            actor.broker.add_middleware(CurrentMessage())
        mend_consumers(actor.broker)
        throws = actor.options.get("throws") or ()
        own = throws if isinstance(throws, tuple) else (throws,)
        actor.options["throws"] = (*own, *guarded.refusals)
        if (retry_when := _retry_when(actor)) is not None:
            actor.options["retry_when"] = retry_when

        @wraps(function)
        def run(*args: object, **kwargs: object) -> object:
            return _run(actor, call, resending, args, kwargs)

        vars(run)["__signature__"] = guarded.signature
        actor.fn = run
        return actor

    return decorate


def _run(
    actor: "Actor[..., object]",
    run: Callable[[TaskCall], TaskEnd],
    resending: Resending,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Run an actor once for its key, and tell Dramatiq what follows."""
    message, name = CurrentMessage.get_current_message(), actor.actor_name
    if message is None or message.actor_name != name:  # called as a function
        return run(TaskCall(None, args, kwargs)).result()
    try:
        end = run(TaskCall(message.message_id, args, kwargs, message.queue_name, message.options.get))
        if end.status == "again":
            _uncount(message)
            seconds = min(end.seconds, _LONGEST)
            logger().info("%s %s comes again in %.1f s: %s", name, message.message_id, seconds, end.error)
            raise _ComesAgain(str(end.error), delay=ceil(seconds * 1000)) from end.error
        if end.status in {"ended", "refused"}:
            logger().warning("%s %s goes to the dead letters: %s", name, message.message_id, end.why)
        return end.result()
    except Shutdown:
        _uncount(message)  # the worker is told to stop, which is no failure of the message
        raise
    finally:
        end = TaskEnd("done")  # else the error, its traceback and this frame would keep each other alive
        resending.begin()


def _resending(broker: "Broker") -> Resending:
    """Return the broker's own, which is made when its first actor is guarded."""
    for middleware in broker.middleware:
        if isinstance(middleware, Resending):
            return middleware
    resending = Resending()
    broker.add_middleware(resending, before=type(broker.middleware[0]))  # there is one at least: Retries
    return resending


def _is_retry(error: Exception) -> bool:
    return isinstance(error, Retry) and not held().completed_in_vain  # what has succeeded must not come again


def _uncount(message: "Message[object]") -> None:
    """Take back the retry that Dramatiq is about to count."""
    message.options["retries"] = message.options.get("retries", 0) - 1


def own_function(actor: "Actor[..., object]") -> Function:
    """Return the function as it was written, or its guard. Dramatiq wraps coroutine functions."""
    function: Function = actor.fn
    inner = getattr(function, "__wrapped__", None)
    wrapped = getattr(function, "__code__", None) in async_to_sync.__code__.co_consts
    return cast("Function", inner) if wrapped and iscoroutinefunction(inner) else function


def _retry_when(actor: "Actor[..., object]") -> RetryWhen | None:
    """Return the ``retry_when`` of an actor, changed to let pass what is no retry; None if it has none."""
    others = (middleware.retry_when for middleware in actor.broker.middleware if isinstance(middleware, Retries))
    retry_when: RetryWhen | None = actor.options.get("retry_when") or next(others, None)
    return retry_when and (lambda retries, error: isinstance(error, _ComesAgain) or retry_when(retries, error))


def _check(broker: "Broker", name: str) -> None:
    """Refuse a broker that would lose messages."""
    if not any(isinstance(middleware, Retries) for middleware in broker.middleware):
        raise ValueError(
            f"{name}: its broker has no Retries middleware, so Dramatiq drops each message that fails or finds its key busy. "
            "Add dramatiq.middleware.Retries()"
        )
    check_confirms(broker, name)


def check_confirms(broker: "Broker", name: str) -> None:
    """Refuse a broker that cannot tell whether a message has arrived."""
    if getattr(broker, "confirm_delivery", True) is False:
        raise ValueError(
            f"{name}: without publisher confirms RabbitMQ can lose a message that is sent or retried. "
            "Make the broker with RabbitmqBroker(confirm_delivery=True)"
        )


class DramatiqJobs(TaskJobs):
    """The messages of an actor. See :class:`onceward.outbox.tasks.TaskJobs`."""

    def __init__(self, task: Any) -> None:
        check_confirms(task.broker, task.actor_name)
        self.function = own_function(task)
        self._actor = task

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Enqueue a message. A second one of the same id is delivered, too."""
        message = self._actor.message_with_options(kwargs=arguments, **headers)
        self._actor.broker.enqueue(message.copy(message_id=key))
