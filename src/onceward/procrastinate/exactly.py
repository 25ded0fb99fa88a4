"""Tasks that take effect once: the decorator above ``@app.task``.

The task's function is replaced by a guarded one. A task middleware tells it of which job it is called. All else stays
Procrastinate's: its retries, locks, periodic tasks and failed jobs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from inspect import Signature
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from asgiref.sync import async_to_sync
from procrastinate import BaseRetryStrategy, JobContext, PsycopgConnector, RetryDecision
from procrastinate.exceptions import AlreadyEnqueued, AppNotOpen, JobAborted, JobRetry
from procrastinate.job_context import AbortReason
from procrastinate.jobs import DeleteJobCondition
from procrastinate.tasks import Task

from onceward.consumers.tasks import GuardedTask, TaskCall, TaskEnd, TaskOptions
from onceward.core.whole import shielded
from onceward.keys.ledger_keys import fingerprint_of
from onceward.observe.logs import logger
from onceward.outbox.loop_thread import awaited
from onceward.outbox.targets import SENT_WITHIN
from onceward.outbox.tasks import TaskJobs

if TYPE_CHECKING:
    from procrastinate.jobs import Job
    from procrastinate.worker import Worker

    from onceward.once import Once

T = TypeVar("T", bound="Task[Any, Any, Any]")

_JOB: ContextVar[JobContext | None] = ContextVar("onceward_procrastinate_job", default=None)
_DELETES: ContextVar[bool] = ContextVar("onceward_procrastinate_deletes", default=False)  # also jobs that failed
ENQUEUED: Final = "onceward "  # begins the queueing lock of a job of once.enqueue; the key follows, without spaces
# A job that waits can have the queueing lock by now, and then a retry with it fails.
_UNCOUNT: Final = r"""UPDATE procrastinate_jobs SET attempts = attempts - 1,
    queueing_lock = substring(queueing_lock from '^onceward \S+') || ' ' || id WHERE id = %(job_id)s"""
_LATE: Final = 900.0  # seconds until a job that would be deleted asks again whether its key is unparked
_SOON: Final = 1.0  # seconds until a job that a stopped worker has left asks for its key


class _ComesAgain(Exception):
    """The job comes again later. It is no retry of Procrastinate's."""

    def __init__(self, why: object, seconds: float) -> None:
        super().__init__(f"comes again in {seconds:.1f} s: {why}")
        self.seconds = ceil(seconds)


class _Retries(BaseRetryStrategy):
    """The task's own retries, but for what is no failure, and what a retry does not help."""

    def __init__(self, own: BaseRetryStrategy | None, refusals: tuple[type[Exception], ...]) -> None:
        self._own, self._refusals = own, refusals

    def get_retry_exception(self, exception: BaseException, job: "Job") -> JobRetry | None:
        if isinstance(exception, _ComesAgain):
            return JobRetry(RetryDecision(retry_in={"seconds": exception.seconds}))
        if self._own is None or isinstance(exception, self._refusals):
            return None
        return self._own.get_retry_exception(exception, job)


def exactly(once: "Once", **options: Unpack[TaskOptions]) -> Callable[[T], T]:
    """Make a task take effect once: ``@exactly(once, key="order_id")`` above ``@app.task``.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`onceward.consumers.tasks.TaskOptions`. By default the key is the job's id, or that of :meth:`onceward.Once.enqueue`.

    Returns:
        A decorator for the task, which it returns.

    Raises:
        ValueError, TypeError: an option is not valid or does not fit the task. Raised when decorating.
    """

    def decorate(task: T) -> T:
        if not isinstance(task, Task):
            raise TypeError(f"{task!r} is not a task: write @exactly(once, ...) above @app.task")
        if task.pass_context and options.get("fingerprint") is True:
            raise ValueError(
                f"{task.name}: fingerprint=True would cover the job's context: name the parameters that matter"
            )
        guarded = GuardedTask(once, task.func, "procrastinate", _is_abort, **options)
        task.func = _run_async(task, guarded) if guarded.is_async else _run(task, guarded)
        vars(task.func)["__signature__"] = guarded.signature
        task.task_middleware = [*task.task_middleware, _tell_async if guarded.is_async else _tell]
        task.retry_strategy = _Retries(task.retry_strategy, guarded.refusals)
        return task

    return decorate


def _is_abort(error: Exception) -> bool:
    return isinstance(error, JobAborted)


@contextmanager
def _calling(context: JobContext, worker: "Worker") -> Iterator[None]:
    token = _JOB.set(context)
    _DELETES.set(worker.delete_jobs is DeleteJobCondition.ALWAYS)
    try:
        yield
    finally:
        _JOB.reset(token)


def _tell(call_next: Callable[[], object], context: JobContext, worker: "Worker") -> object:
    with _calling(context, worker):
        return call_next()


async def _tell_async(call_next: Callable[[], Awaitable[object]], context: JobContext, worker: "Worker") -> object:
    with _calling(context, worker):
        return await call_next()


def _run(task: "Task[Any, Any, Any]", guarded: GuardedTask) -> Callable[..., object]:
    @wraps(task.func)
    def run(*args: object, **kwargs: object) -> object:
        context = _of(task)
        end = guarded.call(_call(context, args, kwargs))
        if (again := _again(context, end)) is not None:
            async_to_sync(_uncount)(context)  # in the worker's event loop
            raise again from end.error
        return end.result()

    return run


def _run_async(task: "Task[Any, Any, Any]", guarded: GuardedTask) -> Callable[..., object]:
    @wraps(task.func)
    async def run(*args: object, **kwargs: object) -> object:
        context = _of(task)
        try:
            end = await guarded.call_async(_call(context, args, kwargs))
        except asyncio.CancelledError:
            if not _stopped(context):
                raise
            end = TaskEnd("again", error=JobAborted())  # the worker is told to stop, which is no failure of the job
        if (again := _again(context, end)) is not None:
            with suppress(asyncio.CancelledError):  # an aborted job would not come again
                await shielded(partial(_uncount, context), lambda: None)
            raise again from end.error
        return end.result()

    return run


def _of(task: "Task[Any, Any, Any]") -> JobContext | None:
    """Return the job that this call of the task is for; None for a call outside of a worker."""
    context = _JOB.get()
    return context if context is not None and context.app.tasks.get(context.job.task_name) is task else None


def _call(context: JobContext | None, args: tuple[object, ...], kwargs: dict[str, object]) -> TaskCall:
    job = None if context is None else context.job
    if job is None:
        return TaskCall(None, args, kwargs)
    lock = job.queueing_lock or ""  # a second job of one enqueue has another id, and the same lock
    if lock.startswith(ENQUEUED):
        return TaskCall(" ".join(lock.split()[:2]), args, kwargs, job.queue)
    # A database that is restored or made again counts from an earlier id again.
    return TaskCall(str(job.id), args, kwargs, job.queue, fingerprint=fingerprint_of(job.task_kwargs))


def _again(context: JobContext | None, end: TaskEnd) -> _ComesAgain | None:
    """Return what lets the job come again, if that is no failure."""
    if context is None:
        return None
    if _stopped(context) and isinstance(end.error, JobAborted):
        return _ComesAgain("the worker was stopped", _SOON)
    if end.status == "refused":
        job = context.job.task_name, context.job.id  # not its call_string, which has the arguments
        if _DELETES.get():
            logger().warning("%s[%s] comes again, because delete_jobs=always would delete it: %s", *job, end.why)
            return _ComesAgain(end.error, _LATE)
        logger().warning("%s[%s] fails for good: %s", *job, end.why)
    return _ComesAgain(end.error, end.seconds) if end.status == "again" else None


def _stopped(context: JobContext | None) -> bool:
    return context is not None and context.abort_reason() is AbortReason.SHUTDOWN


async def _uncount(context: JobContext | None) -> None:
    """Take back the attempt that Procrastinate is about to count, and its queueing lock. It has no way of its own to do that."""
    assert context is not None
    try:
        await context.app.connector.execute_query_async(_UNCOUNT, job_id=context.job.id)
    except Exception as error:  # the job must come again, even if that is counted
        logger().warning("job %s: an attempt that did not run is counted: %s", context.job.id, error)


class ProcrastinateJobs(TaskJobs):
    """The jobs of a task. See :class:`onceward.outbox.tasks.TaskJobs`."""

    broker: Any

    def __init__(self, task: Any) -> None:
        if task.queueing_lock is not None:
            raise ValueError(
                f"{task.name}: once.enqueue gives each job a queueing lock of its own. Leave out the task's queueing_lock=, or defer the "
                "task without once.enqueue"
            )
        task.blueprint.will_configure_task()  # raises if the task belongs to no App yet
        self.function, self.broker = task.func, task.blueprint
        self._task, self._is_opened = task, False

    def signature(self) -> Signature:
        """Return the parameters without the job's context."""
        own = super().signature()
        return own.replace(parameters=list(own.parameters.values())[1:]) if self._task.pass_context else own

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Defer a job. If a job of this key still waits, it is there already."""
        job = self._task.configure(queueing_lock=f"{ENQUEUED}{key}")
        try:
            try:
                if (loop := self.home()) is not None:
                    awaited(job.defer_async(**arguments), SENT_WITHIN, loop)
                    return
            except CancelledError:  # the loop has ended meanwhile
                pass
            self._defer(job, arguments)
        except AlreadyEnqueued:
            pass

    def close(self) -> None:
        """Close the app, if this has opened it."""
        if self._is_opened:
            self._is_opened = False
            self.broker.close()

    def _defer(self, job: Any, arguments: dict[str, object]) -> None:
        if isinstance(self.broker.connector.get_sync_connector(), PsycopgConnector):  # it is open, in some event loop
            raise RuntimeError("its app is open in an event loop: call await once.enqueue_async(...) there")
        try:
            job.defer(**arguments)
        except AppNotOpen:
            self.broker.open()
            self._is_opened = True
            job.defer(**arguments)
