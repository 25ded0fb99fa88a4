"""Which settings of a Celery application lose tasks or run them twice. It reads the application's own settings, and asks no broker."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from celery import Celery, Task

from onceward.celery.ends import has_dead_letters
from onceward.consumers.dead_letters import dead_name
from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Level

_VISIBILITY: Final = {
    "redis": 3600.0,
    "rediss": 3600.0,
    "sentinel": 3600.0,
    "sqs": 1800.0,
}  # kombu's defaults, in seconds
_DOCS: Final = "Celery User Guide, Configuration and defaults"
_BROKERS: Final = "Celery Getting Started, Backends and Brokers"


class GuardedTaskFacts(NamedTuple):
    """A guarded task of the application, and its policy."""

    task: Task
    policy: Policy


def guarded_tasks(app: Celery) -> list[GuardedTaskFacts]:
    """Return the application's guarded tasks, by name."""
    app.loader.import_default_modules()
    guards = [(task, getattr(task.run, "onceward_guard", None)) for _, task in sorted(app.tasks.items())]
    return [GuardedTaskFacts(task, guard.policy) for task, guard in guards if guard is not None]


def celery_findings(app: Celery) -> Iterator[Finding]:
    """Yield what is unsafe, and what is not."""
    tasks = guarded_tasks(app)
    if not tasks:
        why, fix = "each delivery of a task runs it again", "write @exactly(once, ...) below @app.task"
        yield Finding("error", "tasks", "no task of the application is guarded", why, fix)
        return
    for check in (_late, _lost, _timeouts, _endless, _visibility, _forgotten, _broker, _confirms, _dead_letters):
        yield from check(app, tasks)


def _late(_: Celery, tasks: list[GuardedTaskFacts]) -> Iterator[Finding]:
    early = [one for one in tasks if not one.task.acks_late]
    why = "Celery acknowledges a task before it runs, so a worker that is killed loses it"
    fix = "set task_acks_late=True"
    yield from _findings(
        "task_acks_late", early, "is acknowledged before it runs", why, fix, "tasks are acknowledged when they end"
    )


def _lost(_: Celery, tasks: list[GuardedTaskFacts]) -> Iterator[Finding]:
    late = [one for one in tasks if one.task.acks_late]
    losing = [
        one for one in late if not (one.task.reject_on_worker_lost or getattr(one.task, "retry_on_worker_lost", False))
    ]
    why = "if the pool's child is killed, by the OOM killer too, Celery acknowledges its task, which never runs again"
    fix = "set task_reject_on_worker_lost=True, and give the task max_attempts="
    if late:
        says = "a killed child's task comes again"
        yield from _findings("task_reject_on_worker_lost", losing, "is lost with its child", why, fix, says)


def _timeouts(_: Celery, tasks: list[GuardedTaskFacts]) -> Iterator[Finding]:
    limited = [one for one in tasks if one.task.time_limit and one.task.acks_late]
    losing = [one for one in limited if _acks_on_timeout(one.task)]
    why = "at its hard time limit the child is killed, and Celery acknowledges the task. Its key stays claimed, and nobody runs it again"
    fix = "set task_acks_on_failure_or_timeout=False (from Celery 5.7, task_acks_on_timeout=False), and give the task max_attempts="
    if limited:
        says = "a task that was killed at its time limit comes again"
        yield from _findings(
            "task_acks_on_failure_or_timeout", losing, "is lost at its time limit", why, fix, says, level="warning"
        )


def _acks_on_timeout(task: Task) -> bool:
    own = getattr(task, "acks_on_timeout", None)
    return bool(task.acks_on_failure_or_timeout if own is None else own)


def _endless(_: Celery, tasks: list[GuardedTaskFacts]) -> Iterator[Finding]:
    endless = [one for one in tasks if one.task.reject_on_worker_lost and one.policy.max_attempts is None]
    why = "a task that kills its worker each time, such as by its memory, comes again for ever"
    yield from _findings(
        "max_attempts",
        endless,
        "has no max_attempts",
        why,
        "give @exactly max_attempts=5: then the key is parked",
        "a task that kills its worker each time is parked in the end",
        level="warning",
    )


def _visibility(app: Celery, tasks: list[GuardedTaskFacts]) -> Iterator[Finding]:
    """Check what a broker that delivers unacknowledged tasks again by the clock does to tasks that wait in a worker."""
    scheme = _scheme(app)
    if scheme not in _VISIBILITY:
        return
    visible = float((app.conf.broker_transport_options or {}).get("visibility_timeout", _VISIBILITY[scheme]))
    says = f"{scheme} delivers a task again {visible:g} s after a worker took it, if that has not acknowledged it"
    longest = max(one.policy.lease for one in tasks)
    delay = max(one.task.default_retry_delay for one in tasks)
    forgets = [one for one in tasks if one.policy.retention is not None and one.policy.retention <= visible]
    check, source = "visibility_timeout", _BROKERS
    fix = 'set broker_transport_options={"visibility_timeout": SECONDS}'
    if forgets:
        why = f"the ledger has forgotten the key of {_names(forgets)} by then, so the effect is made twice"
        yield Finding("error", check, says, why, f"{fix} below the retention, or raise retention=", source)
    elif visible <= max(longest, delay):
        why = f"a task waits in its worker for a lease ({longest:g} s) or a retry ({delay:g} s), and is delivered again all the while"
        yield Finding("warning", check, says, why, f"{fix} above both, and above your longest eta or countdown", source)
    else:
        yield Finding("ok", check, f"{says}; no lease or retry of a guarded task lasts longer")
    if app.conf.worker_prefetch_multiplier != 1:
        says = (
            f"a worker takes {app.conf.worker_prefetch_multiplier or 'any number of'} tasks for each of its processes"
        )
        why = "their visibility timeout begins when they are taken, not when they run"
        yield Finding("warning", "worker_prefetch_multiplier", says, why, "set worker_prefetch_multiplier=1", _DOCS)


def _forgotten(app: Celery, tasks: list[GuardedTaskFacts]) -> Iterator[Finding]:
    keeps = app.conf.result_expires
    seconds = keeps.total_seconds() if hasattr(keeps, "total_seconds") else keeps
    if not seconds or app.conf.task_ignore_result or app.conf.result_backend in {None, "disabled", "disabled://"}:
        return
    short = [one for one in tasks if one.policy.retention is not None and one.policy.retention < seconds]
    why = "a caller still sees the result of a key that the ledger has forgotten, and a duplicate runs again"
    fix = "raise retention=, or lower result_expires"
    says = "the ledger remembers a key for longer than the backend its result"
    yield from _findings("result_expires", short, "is forgotten before its result", why, fix, says, level="warning")


def _broker(app: Celery, _: list[GuardedTaskFacts]) -> Iterator[Finding]:
    scheme = _scheme(app)
    if scheme in {"redis", "rediss", "sentinel"}:
        says = f"a worker takes a task off {scheme}, and only then notes that it has it"
        why = "if the worker or Redis is killed in between, the task is lost, and no setting changes that"
        fix = "use RabbitMQ, or let the sender send again what it sees no effect of: the key makes that safe"
        yield Finding("warning", "broker", says, why, fix, "kombu, transport/redis.py")


def _confirms(app: Celery, _: list[GuardedTaskFacts]) -> Iterator[Finding]:
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


def _dead_letters(app: Celery, _: list[GuardedTaskFacts]) -> Iterator[Finding]:
    for queue in sorted(app.amqp.queues):
        dead = dead_name(queue)
        if has_dead_letters(app, queue):
            yield Finding("ok", "dead letters", f"parked tasks of {queue} go to its dead-letter exchange")
        elif app.conf.task_create_missing_queues or dead in app.amqp.queues:
            yield Finding("ok", "dead letters", f"parked tasks of {queue} wait in {dead}")
        else:
            says = f"{queue} has no dead-letter exchange, and {dead} is not among task_queues"
            why = (
                "task_create_missing_queues=False, so parked tasks cannot be put there, and are delivered over and over"
            )
            yield Finding("error", "dead letters", says, why, f"add Queue({dead!r}) to task_queues", _DOCS)


def _findings(
    check: str, wrong: list[GuardedTaskFacts], what: str, why: str, fix: str, fine: str, *, level: Level = "error"
) -> Iterator[Finding]:
    if wrong:
        yield Finding(level, check, f"{_names(wrong)} {what}", why, fix, _DOCS)
    else:
        yield Finding("ok", check, fine)


def _names(tasks: list[GuardedTaskFacts]) -> str:
    names = [one.task.name for one in tasks]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")


def _scheme(app: Celery) -> str:
    url = app.conf.broker_read_url or app.conf.broker_url or "amqp://"
    return (url[0] if isinstance(url, list) else url).partition(":")[0]
