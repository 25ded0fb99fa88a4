"""Tasks that take effect once: the decorator above ``@broker.task``.

Taskiq's middleware is told before and after a call, but cannot make or skip it, so the task's function is replaced. A middleware
tells it of which message it is called. All else stays Taskiq's: its retries, timeouts, dependencies and results.
"""

from asyncio import CancelledError, current_task
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from taskiq import AsyncTaskiqDecoratedTask, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import NoResultError

from onceward.consumers.tasks import GuardedTask, TaskCall, TaskEnd, TaskOptions
from onceward.errors import ResultUnavailable
from onceward.taskiq.resending import LONGEST, dead_letter, has_dead_letters, send_again
from onceward.taskiq.settings import ACK, check_broker, check_retries

if TYPE_CHECKING:
    from taskiq import ScheduleSource

    from onceward.once import Once

T = TypeVar("T", bound="AsyncTaskiqDecoratedTask[Any, Any]")
Function = Callable[..., object]

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
            raise TypeError(f"{task!r} is no task: write @exactly(once, ...) above @broker.task")
        check_broker(task.broker, task.task_name)
        ours = (middleware for middleware in task.broker.middlewares if isinstance(middleware, OnceMiddleware))
        told = next(ours, None)
        if told is None:
            told = OnceMiddleware()
            task.broker.add_middlewares(told)
        told.names.add(task.task_name)
        _GuardedTaskiq(task, once, later, options).replace()
        return task

    return decorate


class _GuardedTaskiq:
    """The function of a task: it guards each message, and tells Taskiq what follows."""

    def __init__(
        self,
        task: "AsyncTaskiqDecoratedTask[Any, Any]",
        once: "Once",
        later: "ScheduleSource | None",
        options: TaskOptions,
    ) -> None:
        function: Function = task.original_func
        name = f"{function.__module__}.{function.__qualname__.removesuffix(_RENAMED)}"
        final = (*options.get("final", once.policy.final), NoResultError)
        self._task, self._later = task, later
        policy = cast("TaskOptions", {"name": name, **options, "final": final})
        self._guarded = GuardedTask(once, function, "taskiq", policy, _is_requeue)

    def replace(self) -> None:
        """Put the guarded function in the place of the task's own."""
        function: Function = self._task.original_func
        if self._guarded.is_async:

            @wraps(function)
            async def run_async(*args: object, **kwargs: object) -> object:
                message = self._message()
                try:
                    end = await self._guarded.call_async(_call(message, args, kwargs))
                except CancelledError:
                    running = current_task()
                    if (
                        message is None
                        or message.labels.get("timeout") is not None
                        or not (running and running.cancelling())
                    ):
                        raise  # a timeout, or the function's own: Taskiq counts it as a failure
                    end = TaskEnd("again", seconds=0.0)  # the receiver ends, which is no failure of the task
                return end.result() if message is None else await self._follow(message, end)

            run: Function = run_async
        else:

            @wraps(function)
            def run_in_thread(*args: object, **kwargs: object) -> object:
                message = self._message()
                end = self._guarded.call(_call(message, args, kwargs))
                # Taskiq awaits what a plain function returns, if it can be awaited.
                return end.result() if message is None or end.status == "done" else self._follow(message, end)

            run = run_in_thread
        vars(run)["__signature__"] = self._guarded.signature
        self._task.original_func = run

    def _message(self) -> TaskiqMessage | None:
        """Return the message that this call is for; None for a call outside of a worker."""
        message = _MESSAGE.get()
        return message if message is not None and message.task_name == self._task.task_name else None

    async def _follow(self, message: TaskiqMessage, end: TaskEnd) -> object:
        """Do what follows from the end of a message, and return its result or raise."""
        broker = self._task.broker
        is_dead = end.status == "refused" and not isinstance(end.error, (*self._guarded.final, ResultUnavailable))
        if is_dead and not has_dead_letters(broker, message):
            end = TaskEnd("again", error=end.error, seconds=LONGEST)  # Taskiq would acknowledge it, and forget it
        if end.status == "again":
            await send_again(broker, message, end, self._later)
            raise NoResultError  # so that Taskiq saves no result and counts no retry
        if end.status == "refused":
            message.labels["retry_on_error"] = False
            if is_dead:
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
