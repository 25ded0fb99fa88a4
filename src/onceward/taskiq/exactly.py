"""Tasks that take effect once: the decorator above ``@broker.task``.

Taskiq's middleware is told before and after a call, but cannot make or skip it, so the task's function is replaced. A middleware
tells it of which message it is called. All else stays Taskiq's: its retries, timeouts, dependencies and results.
"""

import asyncio
from asyncio import AbstractEventLoop, CancelledError, current_task
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import wraps
from inspect import Signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack
from weakref import WeakKeyDictionary

from taskiq import AsyncBroker, AsyncTaskiqDecoratedTask, InMemoryBroker, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import NoResultError
from taskiq.kicker import AsyncKicker
from taskiq_dependencies.dependency import Dependency

from onceward.consumers.dead_letters import dead_name
from onceward.consumers.delivery import Backoff
from onceward.consumers.tasks import GuardedTask, TaskCall, TaskEnd, TaskOptions
from onceward.keys.signatures import filled_in
from onceward.observe.logs import logger
from onceward.outbox.loop_thread import awaited, own_loop
from onceward.outbox.targets import SENT_WITHIN
from onceward.outbox.tasks import HOMES, TaskJobs

if TYPE_CHECKING:
    from taskiq import ScheduleSource

    from onceward.once import Once
from collections.abc import Iterable
from typing import TYPE_CHECKING

from taskiq.acks import AcknowledgeType
from taskiq.middlewares import SimpleRetryMiddleware, SmartRetryMiddleware

# Settings of Taskiq that lose tasks are refused when the task is decorated, or when its worker starts.
ACK: Final = AcknowledgeType.WHEN_SAVED.value

# Brokers that forget a message when they hand it over.
_FORGETFUL: Final = {
    "ListQueueBroker",
    "ListQueueClusterBroker",
    "ListQueueSentinelBroker",
    "NatsBroker",
    "PubSubBroker",
    "PubSubSentinelBroker",
    "ZeroMQBroker",
}


def check_broker(broker: AsyncBroker, task: str) -> None:
    """Refuse a broker that loses messages."""
    kinds = {kind.__name__ for kind in type(broker).__mro__}
    if "AsyncSharedBroker" in kinds:
        raise TypeError(f"{task}: a shared task has no broker of its own yet: declare it with @broker.task")
    if kinds & _FORGETFUL:
        raise ValueError(
            f"{task}: {type(broker).__name__} forgets a message when it hands it over, so a crash loses it. Use a broker that "
            "acknowledges, such as RedisStreamBroker"
        )
    if (most := getattr(broker, "maxlen", None)) is not None:
        raise ValueError(f"{task}: maxlen={most} drops messages that wait: leave it out")


def check_retries(broker: AsyncBroker, tasks: Iterable[str]) -> None:
    """Refuse guarded tasks that are not retried. Taskiq acknowledges what fails, so they would be lost."""
    own = [m for m in broker.middlewares if type(m).on_error is not TaskiqMiddleware.on_error]
    retrying = [m for m in own if isinstance(m, SimpleRetryMiddleware | SmartRetryMiddleware)]
    if len(retrying) < len(own) or any(m.default_retry_label for m in retrying):
        return  # a middleware of the application's own may retry by its own rules
    for name in sorted(tasks):
        task = broker.find_task(name)
        if not retrying or task is None or not task.labels.get("retry_on_error"):
            raise ValueError(
                f"{name}: Taskiq drops a task that fails, unless it retries it. Add SmartRetryMiddleware() to the broker's "
                "middlewares, and retry_on_error=True to the task"
            )


LONGEST: Final = 60.0  # seconds that a message waits in a worker, which holds it meanwhile
_BROKER: Final = Backoff(0.5, 15.0)  # between two tries to send
_MILLISECONDS: Final = 1000.0


async def send_again(
    broker: AsyncBroker, message: "TaskiqMessage", end: "TaskEnd", later: "ScheduleSource | None"
) -> None:
    """Send the message once more, unchanged, so that it comes when its key may be free."""
    kicker = _kicker(broker, message, {})
    if later is not None:
        when = datetime.now(UTC) + timedelta(seconds=end.seconds)
        logger().info("%s %s comes again in %.1f s: %s", message.task_name, message.task_id, end.seconds, end.error)
        await _sent(lambda: kicker.schedule_by_time(later, when, *message.args, **message.kwargs))
        return
    idle = getattr(broker, "idle_timeout", None)  # after which RedisStreamBroker gives the message to another worker
    held = LONGEST if idle is None else min(LONGEST, idle / _MILLISECONDS / 2)
    timeout = message.labels.get("timeout")  # of the task; it would count this pause as a failure
    with suppress(asyncio.CancelledError):  # the receiver ends, so another one gets the message now
        await asyncio.sleep(min(end.seconds, held if timeout is None else float(timeout) / 2))
    logger().info("%s %s comes again: %s", message.task_name, message.task_id, end.error)
    await _sent(lambda: kicker.kiq(*message.args, **message.kwargs))


def has_dead_letters(broker: AsyncBroker, message: "TaskiqMessage") -> bool:
    """Return whether there is a place for a dead letter: its broker has queues with names, or keeps no messages at all."""
    return isinstance(_queue_of(broker, message), str) or isinstance(broker, InMemoryBroker)


async def dead_letter(broker: AsyncBroker, message: "TaskiqMessage", end: "TaskEnd") -> None:
    """Send the message to the dead letters."""
    queue = _queue_of(broker, message)
    logger().warning("%s %s becomes a dead letter: %s", message.task_name, message.task_id, end.why)
    if not isinstance(queue, str):
        return
    tries = int(message.labels.get("_retries", 0)) + 1
    labels = {**end.dead_headers(queue, tries), "queue_name": dead_name(queue)}
    kicker = _kicker(broker, message, labels)
    await _sent(lambda: kicker.kiq(*message.args, **message.kwargs))


def _queue_of(broker: AsyncBroker, message: "TaskiqMessage") -> object:
    return message.labels.get("queue_name") or getattr(broker, "queue_name", None)


def _kicker(broker: AsyncBroker, message: "TaskiqMessage", labels: dict[str, str]) -> "AsyncKicker[Any, Any]":
    kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, broker, {**message.labels, **labels})
    return kicker.with_task_id(message.task_id)


async def _sent(send: Callable[[], Awaitable[object]]) -> None:
    """Send until the broker has it. Meanwhile the message is not acknowledged, so a crash loses nothing."""
    tries = 0
    while True:
        try:
            await send()
        except Exception as error:  # each broker has errors of its own
            tries += 1
            logger().warning("a message could not be sent again yet: %s", error)
            await asyncio.sleep(_BROKER.seconds(tries))
        else:
            return


T = TypeVar("T", bound="AsyncTaskiqDecoratedTask[Any, Any]")
Function = Callable[..., object]
Task = AsyncTaskiqDecoratedTask[Any, Any]

_MESSAGE: ContextVar[TaskiqMessage | None] = ContextVar("onceward_taskiq_message", default=None)
_BEFORE: ContextVar[object] = ContextVar("onceward_taskiq_before")  # how often the message has sent itself again
_RENAMED: Final = "__taskiq_original"  # after the name of each function that Taskiq makes a task of
_REQUEUES: Final = "X-Taskiq-requeue"  # the label that Context.requeue() counts in


class OnceMiddleware(TaskiqMiddleware):
    """Tells guarded tasks of their messages. ``exactly`` adds it to the task's broker."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def startup(self) -> None:
        """Refuse a worker that would lose tasks."""
        if self.broker.is_worker_process:
            check_retries(self.broker, self.names)

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Take in which message comes next in this context."""
        if message.task_name in self.names:
            message.labels["ack_type"] = ACK  # whatever the worker's --ack-type
            _MESSAGE.set(message)
            _BEFORE.set(message.labels.get(_REQUEUES))
        return message

    def post_execute(self, message: TaskiqMessage, result: object) -> None:
        """Forget the message."""
        _MESSAGE.set(None)


def exactly(once: "Once", *, later: "ScheduleSource | None" = None, **options: Unpack[TaskOptions]) -> Callable[[T], T]:
    """Make a task take effect once: ``@exactly(once, key="order.id")`` above ``@broker.task``.

    Args:
        once: the ledger and the defaults of the policy.
        later: keeps what comes again later, for a running scheduler. Without it such a task waits in the worker, for at most a
            minute at a time.
        **options: see :class:`onceward.consumers.tasks.TaskOptions`. By default the key is the task's id.

    Returns:
        A decorator for the task, which it returns.

    Raises:
        ValueError, TypeError: an option is not valid or does not fit the task, or its broker would lose tasks. Raised when
            decorating; a worker without retries is refused when it starts.
    """

    def decorate(task: T) -> T:
        if not isinstance(task, AsyncTaskiqDecoratedTask):
            raise TypeError(f"{task!r} is not a task: write @exactly(once, ...) above @broker.task")
        check_broker(task.broker, task.task_name)
        ours = (middleware for middleware in task.broker.middlewares if isinstance(middleware, OnceMiddleware))
        middleware = next(ours, None)
        if middleware is None:
            middleware = OnceMiddleware()
            task.broker.add_middlewares(middleware)
        middleware.names.add(task.task_name)
        function: Function = task.original_func
        own = f"{function.__module__}.{function.__qualname__.removesuffix(_RENAMED)}"
        filled = filled_in(function, (Dependency,))
        guarded = GuardedTask(
            once, function, "taskiq", _is_requeue, filled=filled, own=own, also_final=(NoResultError,), **options
        )
        run = _guarded_function(task, guarded, later)
        vars(run)["__signature__"] = guarded.signature
        task.original_func = run
        return task

    return decorate


def _guarded_function(task: Task, guarded: GuardedTask, later: "ScheduleSource | None") -> Function:
    """Return what takes the place of a task's function: it guards each message, and tells Taskiq what follows."""
    function: Function = task.original_func
    if guarded.is_async:

        @wraps(function)
        async def run_async(*args: object, **kwargs: object) -> object:
            message = _message_of(task)
            try:
                end = await guarded.call_async(_call(message, args, kwargs))
            except CancelledError:
                running = current_task()
                if (
                    message is None
                    or message.labels.get("timeout") is not None
                    or not (running and running.cancelling())
                ):
                    raise  # a timeout, or the function's own: Taskiq counts it as a failure
                end = TaskEnd("again", seconds=0.0)  # the receiver ends, which is no failure of the task
            return end.result() if message is None else await _follow(task.broker, message, end, later)

        return run_async

    @wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        message = _message_of(task)
        end = guarded.call(_call(message, args, kwargs))
        # Taskiq awaits what a plain function returns, if it can be awaited.
        return end.result() if message is None or end.status == "done" else _follow(task.broker, message, end, later)

    return run


def _message_of(task: Task) -> TaskiqMessage | None:
    """Return the message that this call is for; None for a call outside of a worker."""
    message = _MESSAGE.get()
    return message if message is not None and message.task_name == task.task_name else None


async def _follow(broker: AsyncBroker, message: TaskiqMessage, end: TaskEnd, later: "ScheduleSource | None") -> object:
    """Do what follows from the end of a message, and return its result or raise."""
    if end.status == "refused" and not has_dead_letters(broker, message):
        end = TaskEnd("again", error=end.error, seconds=LONGEST)  # Taskiq would acknowledge it, and forget it
    if end.status == "again":
        await send_again(broker, message, end, later)
        raise NoResultError  # so that Taskiq saves no result and counts no retry
    if end.status in {"ended", "refused"}:
        message.labels["retry_on_error"] = False
    if end.status == "refused":
        await dead_letter(broker, message, end)
    return end.result()


def _call(message: TaskiqMessage | None, args: tuple[object, ...], kwargs: dict[str, object]) -> TaskCall:
    if message is None:
        return TaskCall(None, args, kwargs)
    return TaskCall(message.task_id, args, kwargs, message.labels.get("queue_name"), message.labels.get)


def _is_requeue(error: Exception) -> bool:
    """Return whether the task has sent itself again with ``Context.requeue()``."""
    message = _MESSAGE.get()
    return isinstance(error, NoResultError) and message is not None and message.labels.get(_REQUEUES) != _BEFORE.get()


_STARTED: Final[WeakKeyDictionary[AsyncBroker, AbstractEventLoop]] = WeakKeyDictionary()  # in a loop of onceward's own


class TaskiqJobs(TaskJobs):
    """The messages of a task. See :class:`onceward.outbox.tasks.TaskJobs`."""

    broker: AsyncBroker

    def __init__(self, task: Any) -> None:
        check_broker(task.broker, task.task_name)
        self.function, self.broker, self._task = task.original_func, task.broker, task

    def signature(self) -> Signature:
        """Return the parameters that Taskiq does not fill in itself."""
        own, filled = super().signature(), filled_in(self.function, (Dependency,))
        return own.replace(parameters=[one for one in own.parameters.values() if one.name not in filled])

    def settle(self, *, awaited: bool) -> None:
        """As there. A caller that is no coroutine uses onceward's own loop, unless another one is known."""
        super().settle(awaited=awaited)
        if not awaited and self.home() is None:
            HOMES[self.broker] = own_loop()

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Send the task. A second message of the same id is delivered, too."""
        loop = self.home() or (own_loop() if TaskJobs.alone else None)
        if loop is None:
            raise RuntimeError("this process does not know the event loop of its broker: another process sends it")
        if loop is own_loop() and _STARTED.get(self.broker) is not loop:
            awaited(self.broker.startup(), SENT_WITHIN)
            _STARTED[self.broker] = loop
        kicker = self._task.kicker().with_task_id(key).with_labels(**headers)
        awaited(kicker.kiq(**arguments), SENT_WITHIN, loop)
