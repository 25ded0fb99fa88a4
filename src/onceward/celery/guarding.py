"""Tasks that take effect once: the decorator under ``@app.task``, and the class for ``base=``."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from types import MethodType
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, Unpack, cast
from uuid import UUID, uuid5

from celery import Task, current_app, current_task
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import worker_process_shutdown
from kombu.pools import producers

from onceward.celery.ends import come_again, dead_letter, keep_refused_retries, queue_of
from onceward.claim.called import TIME_LIMITS
from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.tasks import GuardedTask, TaskCall, TaskOptions
from onceward.once import Once, check_once
from onceward.outbox import sender
from onceward.outbox.tasks import TaskJobs

Function = Callable[..., object]

_LINKS: Final = UUID("6f1c3f0e-6d0b-4f0c-9a38-0d6c6f5f3c55")  # the namespace of the ids of linked tasks

TIME_LIMITS.add(SoftTimeLimitExceeded)


def _drain(**_: object) -> None:
    """Send what is unsent, as at any exit: Celery's children end without what atexit has."""
    sender.drain(sender.AT_EXIT)


worker_process_shutdown.connect(_drain)


def says_what_follows(error: Exception) -> bool:
    """Return whether the function has said what follows, which is no failure."""
    return isinstance(error, Retry | Reject)


def deliver(task: Task, guarded: GuardedTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Run a delivery of the task, and return its result or raise what tells the worker how it ended.

    Nobody can publish a task again that was called directly or eagerly, so there all errors go on as they are.
    """
    request = task.request
    # Its own function can call task.run(). What this context still has of another task's claims does not count.
    is_direct = request.called_directly or (guarded.runs_here and not request.is_eager)
    is_message = not is_direct and not request.is_eager
    headers = request.headers or {}
    call = TaskCall(None if is_direct else _id_of(request), args, kwargs, queue_of(task), headers.get)
    end = guarded.call(call)
    if end.error is not None and is_message and end.status == "again":
        raise come_again(task, end) from end.error
    if end.status == "refused" and is_message:
        raise dead_letter(task, end) from end.error
    if end.error is None and is_message:
        _name_links(task)
    return end.result()


def _id_of(request: Context) -> str:
    """Return the task's id. What ``self.replace()`` sends has the same id, and is another task."""
    nesting = request.replaced_task_nesting
    return f"{request.id}.{nesting}" if nesting else str(request.id)


def _name_links(task: Task) -> None:
    """Give linked tasks ids that follow from this one's, so that each copy of the message links the same tasks."""
    for place, link in enumerate(task.request.callbacks or ()):
        if not link.get("subtask_type"):  # the parts of a chain or group get ids of their own
            link["options"].setdefault("task_id", str(uuid5(_LINKS, f"{task.request.id} {place}")))


P = ParamSpec("P")
R = TypeVar("R")


class TaskGuard:
    """Guards the function of a task, under the task's name. That is known when Celery first calls the function.

    Attributes:
        once: the ledger.
        policy: of the task.
        signature: the function's, without the claim.
    """

    def __init__(self, once: Once, function: Function, options: TaskOptions) -> None:
        check_once(once, '@exactly({}, key="order.id")')
        if options.get("keep_input", once.policy.keep_input):
            raise TypeError("keep_input=True is not for tasks: their broker keeps the arguments")
        self.once, self._function, self._options = once, function, options
        self._guarded: dict[Task, GuardedTask] = {}
        first = self._guard(function, "celery")  # refuses wrong options now
        if iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__}() is a coroutine function, and Celery cannot await it")
        self.signature, self.policy = first.signature, first.policy

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run the task once."""
        is_bound = bool(args) and isinstance(args[0], Task) and self.guards(args[0])
        task = args[0] if is_bound else self._task()
        guarded = self._guarded.get(task)
        if guarded is None:
            keep_refused_retries(task)
            function = cast("Function", MethodType(self._function, task)) if is_bound else self._function
            guarded = self._guarded[task] = self._guard(function, task.name)
        return deliver(task, guarded, args[is_bound:], kwargs)

    def guards(self, task: Task) -> bool:
        """Return whether this guards ``task``. Wrappers of Celery's copy the attributes of what they wrap."""
        return getattr(task.run, "onceward_guard", None) is self

    def _task(self) -> Task:
        running = current_task._get_current_object()  # noqa: SLF001 - the documented way to ask whether there is one
        if running is not None and self.guards(running):
            return running
        for task in current_app.tasks.values():
            if self.guards(task):
                return task
        raise TypeError(f"{self._function.__qualname__}() is not a task yet: write @app.task above @exactly(once, ...)")

    def _guard(self, function: Function, own: str) -> GuardedTask:
        # Ignore is how a function ends without a result, and how self.replace() ends: duplicates must end so, too.
        return GuardedTask(
            self.once, function, "celery", says_what_follows, own=own, also_final=(Ignore,), **self._options
        )


def exactly(once: Once, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a task take effect once: ``@exactly(once, key="order.id")`` below ``@app.task``.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`onceward.consumers.tasks.TaskOptions`. By default the key is the task's id, so only
            copies of one message are duplicates. The namespace is by default the task's name.

    Returns:
        A decorator for the function of a task.

    Raises:
        ValueError, TypeError: an option is not valid or does not fit the function. Raised when decorating.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, Task):
            raise TypeError(f"{function.name} is a task already: write @exactly(once, ...) below @app.task")
        guard = TaskGuard(once, function, options)

        @wraps(function)
        def run(*args: object, **kwargs: object) -> object:
            return guard.call(args, kwargs)

        vars(run).update(
            __signature__=guard.signature, onceward_guard=guard
        )  # TaskGuard.guards and doctor read the guard
        return cast("Callable[P, R]", run)

    return decorate


class OnceTask(Task):
    """A task class whose tasks take effect once, for ``base=``, ``task_cls=`` and your own subclasses.

    Attributes:
        once: the ledger and the defaults of the policy.
        options: as for :func:`exactly`.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    once: ClassVar[Once | None] = None
    options: ClassVar[TaskOptions] = {}
    run: Function

    def __init__(self) -> None:
        if (self.name or "").startswith("celery.") or hasattr(self.run, "onceward_guard"):
            return  # Celery's own, such as chord_unlock, which comes again on purpose; or below it stands @exactly
        if self.once is None:
            raise TypeError(f"{self.name}: give the task its ledger, as in @app.task(base=OnceTask, once=once)")
        self.run = exactly(self.once, **self.options)(self.run)


_ANSWERED: Final = 4.0  # seconds; with the time to connect less than SENT_WITHIN
_TRANSPORT: Final = {
    "confirm_publish": True,
    "max_retries": 1,
    "connect_retries_timeout": 2.0,
    "read_timeout": _ANSWERED,  # the last three: of AMQP, and of Redis
    "write_timeout": _ANSWERED,
    "socket_timeout": _ANSWERED,
}


class CeleryJobs(TaskJobs):
    """The messages of a task, with the options of its decorator. See :class:`onceward.outbox.tasks.TaskJobs`."""

    def __init__(self, task: Any) -> None:
        self.function, self._task = task.run, task

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Publish the task; on AMQP, wait until the broker has it. A second message of the same id is delivered, too."""
        connection = self._task.app.connection_for_write(connect_timeout=2.0, transport_options=_TRANSPORT)
        with producers[connection].acquire(block=True, timeout=_ANSWERED) as producer:
            self._task.apply_async(
                (),
                arguments,
                task_id=key,
                headers={**headers, KEY_HEADER: key},
                producer=producer,
                add_to_parent=False,
                confirm_timeout=_ANSWERED,
                retry_policy={"max_retries": 1, "interval_start": 0.1},
            )
