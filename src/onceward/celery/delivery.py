"""One delivery of a task: runs the guarded function, and translates how that ends into Celery's terms."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final
from uuid import UUID, uuid5

from celery import Task
from celery.app.task import Context
from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded

from onceward.celery.ends import come_again, dead_letter, queue_of
from onceward.claim.called import TIME_LIMITS
from onceward.claim.lease import CURRENT
from onceward.consumers.tasks import GuardedTask, TaskCall
from onceward.errors import ResultUnavailable

Function = Callable[..., object]

_LINKS: Final = UUID("6f1c3f0e-6d0b-4f0c-9a38-0d6c6f5f3c55")  # the namespace of the ids of linked tasks
_RETURNED: ContextVar[list[object]] = ContextVar(
    "onceward_celery_returned"
)  # what the function of this delivery returned

TIME_LIMITS.add(SoftTimeLimitExceeded)


def body(function: Function) -> Function:
    """Return the function, which notes what it returned."""

    @wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        value = function(*args, **kwargs)
        _RETURNED.get().append(value)
        return value

    return called


def says_what_follows(error: Exception) -> bool:
    """Return whether the function has said what follows, which is no failure."""
    return isinstance(error, Retry | Reject)


def deliver(task: Task, guarded: GuardedTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Run a delivery of the task, and return its result or raise what tells the worker how it ended.

    Nobody can publish a task again that was called directly or eagerly, so there all errors go on as they are.
    """
    request = task.request
    is_direct = request.called_directly or (
        CURRENT.get() is not None and not request.is_eager
    )  # task.run() in its own function
    is_message = not is_direct and not request.is_eager
    headers = request.headers or {}
    call = TaskCall(None if is_direct else _id_of(request), args, kwargs, queue_of(task), headers.get)
    returned: list[object] = []
    token = _RETURNED.set(returned)
    try:
        end = guarded.call(call)
        if returned and isinstance(end.error, SoftTimeLimitExceeded):
            end = guarded.call(call)  # the limit came while the result was being recorded, and that is done
    finally:
        _RETURNED.reset(token)
    if end.error is not None and is_message and end.status == "again":
        raise come_again(task, end) from end.error
    if end.status == "refused" and is_message and not isinstance(end.error, (*guarded.final, ResultUnavailable)):
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
