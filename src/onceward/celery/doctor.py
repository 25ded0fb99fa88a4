"""Which settings of a Celery application lose tasks or run them twice. It reads the application's own settings, and asks no broker."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from celery import Celery, Task

from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Level

_VISIBILITY: Final = {
    "redis": 3600.0,
    "rediss": 3600.0,
    "sentinel": 3600.0,
    "sqs": 1800.0,
}  # kombu's defaults, in seconds
_DOCS: Final = "Celery User Guide, Configuration and defaults"


Guarded = tuple[Task, Policy]  # a guarded task of the application, and its policy


class _Rule(NamedTuple):
    """A setting that must be safe for each guarded task."""

    setting: str
    level: Level
    is_unsafe: Callable[[Task], bool]
    why: str
    fix: str


def _is_lost_with_child(task: Task) -> bool:
    return task.acks_late and not (task.reject_on_worker_lost or getattr(task, "retry_on_worker_lost", False))


def _is_lost_at_its_limit(task: Task) -> bool:
    own = getattr(task, "acks_on_timeout", None)
    return bool(task.acks_late and task.time_limit and (task.acks_on_failure_or_timeout if own is None else own))


_RULES: Final = (
    _Rule(
        "task_acks_late",
        "error",
        lambda task: not task.acks_late,
        "Celery acknowledges a task before it runs, so a worker that is killed loses it",
        "set task_acks_late=True",
    ),
    _Rule(
        "task_reject_on_worker_lost",
        "error",
        _is_lost_with_child,
        "if the pool's child is killed, by the OOM killer too, Celery acknowledges its task, which never runs again",
        "set task_reject_on_worker_lost=True, and give the task max_attempts=",
    ),
    _Rule(
        "task_acks_on_failure_or_timeout",
        "warning",
        _is_lost_at_its_limit,
        "at its hard time limit the child is killed, and Celery acknowledges the task. Nobody runs it again",
        "set task_acks_on_failure_or_timeout=False (from Celery 5.7, task_acks_on_timeout=False), and give the task max_attempts=",
    ),
)


def guarded_tasks(app: Celery) -> list[Guarded]:
    """Return the application's guarded tasks, by name."""
    app.loader.import_default_modules()
    guards = [(task, getattr(task.run, "onceward_guard", None)) for _, task in sorted(app.tasks.items())]
    return [(task, guard.policy) for task, guard in guards if guard is not None]


def celery_findings(app: Celery) -> Iterator[Finding]:
    """Yield what is unsafe, and what is not."""
    tasks = guarded_tasks(app)
    if not tasks:
        why, fix = "each delivery of a task runs it again", "write @exactly(once, ...) below @app.task"
        yield Finding("error", "tasks", "no task of the application is guarded", why, fix)
        return
    for rule in _RULES:
        if unsafe := [one for one in tasks if rule.is_unsafe(one[0])]:
            yield Finding(rule.level, rule.setting, f"it is not safe for {_names(unsafe)}", rule.why, rule.fix, _DOCS)
        else:
            yield Finding("ok", rule.setting, "it is safe for each guarded task")
    yield from _visibility(app, tasks)
    yield from _confirms(app)


def _visibility(app: Celery, tasks: list[Guarded]) -> Iterator[Finding]:
    """Check what a broker that delivers unacknowledged tasks again by the clock does to tasks that wait in a worker."""
    scheme = _scheme(app)
    if scheme not in _VISIBILITY:
        return
    visible = float((app.conf.broker_transport_options or {}).get("visibility_timeout", _VISIBILITY[scheme]))
    says = f"{scheme} delivers a task again {visible:g} s after a worker took it, if that has not acknowledged it"
    longest = max(policy.lease for _, policy in tasks)
    forgets = [one for one in tasks if one[1].retention is not None and one[1].retention <= visible]
    check, fix = "visibility_timeout", 'set broker_transport_options={"visibility_timeout": SECONDS}'
    if forgets:
        why = f"the ledger has forgotten the key of {_names(forgets)} by then, so the effect is made twice"
        yield Finding("error", check, says, why, f"{fix} below the retention, or raise retention=", _DOCS)
    elif visible <= longest:
        why = f"a task waits in its worker for a lease ({longest:g} s), and is delivered again all the while"
        yield Finding("warning", check, says, why, f"{fix} above it, and above your longest eta or countdown", _DOCS)
    else:
        yield Finding("ok", check, f"{says}; no lease of a guarded task lasts longer")


def _confirms(app: Celery) -> Iterator[Finding]:
    if _scheme(app) not in {"amqp", "pyamqp", "amqps"}:
        return
    check = "confirm_publish"
    if (app.conf.broker_transport_options or {}).get("confirm_publish"):
        yield Finding("ok", check, "a task is sent when RabbitMQ has it")
        return
    says = "tasks and their retries are sent without RabbitMQ's confirmation"
    why = "a retry is sent and its first message acknowledged; if RabbitMQ goes down in between, the task is lost"
    fix = 'set broker_transport_options={"confirm_publish": True}'
    yield Finding("error", check, says, why, fix, "kombu, pyamqp transport, confirm_publish")


def _names(tasks: list[Guarded]) -> str:
    names = [task.name for task, _ in tasks]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")


def _scheme(app: Celery) -> str:
    url = app.conf.broker_read_url or app.conf.broker_url or "amqp://"
    return (url[0] if isinstance(url, list) else url).partition(":")[0]
