"""Tasks of a queue as targets of the outbox, ``task:shop.tasks:charge``, and jobs that are queued once for a key.

A task is found by import, and its library's own room queues its jobs. A job that is queued once is one insert of a record that only carries
the job, as a message to its task.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar, Final, cast
from weakref import WeakKeyDictionary

import msgspec

from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.origin import PARENT, ROOT
from onceward.core.outbox_writes import insert_messages
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, may_send
from onceward.core.record import Reply, Write
from onceward.core.retries import patience, retry_transient
from onceward.core.writes import send_lease
from onceward.errors import StoreError
from onceward.keys.ledger_keys import ledger_key
from onceward.lazily import at
from onceward.observe.observers import Observers
from onceward.outbox import sender
from onceward.outbox.pending import check_outbox
from onceward.outbox.sending import believed
from onceward.outbox.targets import SENT_WITHIN, OutboxMessage, not_sent
from onceward.outbox.transactions import alone
from onceward.results.outcomes import describe
from onceward.stores.contract import Store

# The class of a task → module and class of its jobs.
LIBRARIES: Final = {
    "celery.app.task.Task": "onceward.celery.guarding:CeleryJobs",
    "dramatiq.actor.Actor": "onceward.dramatiq.exactly:DramatiqJobs",
    "procrastinate.tasks.Task": "onceward.procrastinate.exactly:ProcrastinateJobs",
    "taskiq.decor.AsyncTaskiqDecoratedTask": "onceward.taskiq.exactly:TaskiqJobs",
}
HOMES: Final[WeakKeyDictionary[object, asyncio.AbstractEventLoop]] = WeakKeyDictionary()
_JSON: Final = "what JSON gives back unchanged: text, numbers, True, False, None, lists, and dicts by text"


class TaskJobs:
    """The jobs of one task. The room of its library says how one is queued.

    Args:
        task: the task.

    Attributes:
        function: whose parameters are a job's arguments.
        reserved: names that a job's arguments cannot have, because the library takes them for itself.
        broker: whose connections belong to an event loop; None if they belong to none.
        alone: whether nothing else in this process uses any broker, as in ``onceward relay``.

    Raises:
        ValueError: its queue could lose the job.
    """

    alone: ClassVar[bool] = False
    reserved: ClassVar[frozenset[str]] = frozenset()
    function: Callable[..., object]
    broker: object = None

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Queue a job whose id is ``key``. Raises anything if it is not queued, or nobody knows."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what this has opened."""

    def signature(self) -> Signature:
        """Return the parameters that a job's arguments can have."""
        return signature(self.function)

    def settle(self, *, awaited: bool) -> None:
        """Note in which event loop the broker is used from now on: the running one if the caller is a coroutine."""
        if self.broker is not None and awaited:
            HOMES[self.broker] = asyncio.get_running_loop()

    def home(self) -> asyncio.AbstractEventLoop | None:
        """Return the running event loop in which the broker is used; None if this process knows of none."""
        loop = HOMES.get(self.broker)
        return loop if loop is not None and loop.is_running() else None


class RqJobs(TaskJobs):
    """The jobs of a function under RQ's ``@job``."""

    reserved = frozenset({"at_front", "depends_on", "job_id"})

    def __init__(self, task: Any) -> None:
        self.function = task
        self._delay = task.delay

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Queue a job. RQ writes over a job of the same id, and runs it again."""
        self._delay(job_id=key, **arguments)


class TaskTarget:
    """A task: ``task:MODULE:NAME``. The message is a job's arguments by name. Its key is the job's id.

    Args:
        address: as above.

    Raises:
        ValueError: this process cannot import it, or it is no task, or its queue could lose the job.
    """

    batch = 1

    def __init__(self, address: str) -> None:
        module, _, name = address.partition(":")[2].partition(":")
        if not (module and name):
            raise ValueError(f"{address!r} is not a task: write task:MODULE:NAME, as in task:shop.tasks:charge")
        try:
            task = at(f"{module}:{name}")
        except (Exception, SystemExit) as error:  # the module's own, too
            raise ValueError(
                f"{address}: this process cannot import it: {describe(error)}. Run `onceward relay --import {module}` "
                "where it can be imported"
            ) from error
        self._address = address
        self._jobs = jobs_of(task)

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError or TypeError if the message is not the arguments of a job."""
        if message.group is not None or message.delay is not None or message.headers.keys() - {ROOT, PARENT}:
            raise ValueError(f"{self._address}: a task has no group=, delay= or headers=; leave them out")
        self._arguments(message)

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Queue the jobs. One that does not fit stays for a process with another version of the task."""
        return [self._sent(message) for message in messages]

    def close(self) -> None:
        """Close what was opened for the task."""
        self._jobs.close()

    def _sent(self, message: OutboxMessage) -> Exception | None:
        try:
            self._jobs.put(message.key, self._arguments(message), message.headers)
        except Exception as error:  # each library and transport has errors of its own
            return not_sent(self._address, error.__cause__ or error)
        return None

    def _arguments(self, message: OutboxMessage) -> dict[str, object]:
        try:
            arguments: object = msgspec.json.decode(message.body)
        except msgspec.DecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            raise ValueError(f"{self._address}: give the job's arguments by name, as in {{'order': 42}}")
        return arguments_of(self._jobs, (), arguments)


def jobs_of(task: object) -> TaskJobs:
    """Return the jobs of a task; raises TypeError if it is no task that onceward knows, ValueError as :class:`TaskJobs`."""
    for kind in task.__class__.__mro__:
        if where := LIBRARIES.get(f"{kind.__module__}.{kind.__qualname__}"):
            return cast("TaskJobs", at(where)(task))
    if getattr(getattr(task, "delay", None), "__globals__", {}).get("__name__") == "rq.decorators":
        return RqJobs(task)
    raise TypeError(
        f"{task!r} is not a task: give one of Celery, Dramatiq, Procrastinate or Taskiq, or a function under RQ's "
        "@job, and its arguments behind it, as in once.enqueue(report, day, key=day)"
    )


def place_of(task: object, jobs: TaskJobs) -> str:
    """Return the task's module and name, as its address has them.

    Raises:
        ValueError: other processes could not import it.
    """
    module = jobs.function.__module__
    if module == "__main__":
        raise ValueError(
            f"{jobs.function.__qualname__}: a relay cannot import a task of __main__. Move it to a module, and import it from there"
        )
    names = [name for name, value in vars(sys.modules[module]).items() if value is task]
    if not names:
        raise ValueError(
            f"{jobs.function.__qualname__}: {module} has no global name for this task, so a relay could not import it. Assign the task "
            "to a global name there, and enqueue it by that name"
        )
    return f"{module}:{names[0]}"


def arguments_of(jobs: TaskJobs, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return a job's arguments by name.

    Raises:
        TypeError: they do not fit the task.
        ValueError: JSON has no such values, the task's parameters have no names, or its library takes one of them for itself.
    """
    name = f"{jobs.function.__module__}.{jobs.function.__qualname__}"
    fits = jobs.signature()
    try:
        values = fits.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{name}{fits}: {error}") from None
    arguments: dict[str, object] = {}
    for own, value in values.items():
        kind = fits.parameters[own].kind
        if kind in {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL}:
            raise ValueError(f"{name}{fits}: a job gets its arguments by name, and {own} cannot be given by name")
        arguments |= value if kind is Parameter.VAR_KEYWORD else {own: value}
    if lost := sorted(jobs.reserved & {*fits.parameters, *arguments}):
        raise ValueError(f"{name}{fits}: the queue takes {lost[0]} for itself, so the job would not get it: rename it")
    try:
        for own, value in arguments.items():
            if msgspec.json.decode(msgspec.json.encode(value)) != value:
                raise ValueError(f"JSON changes {own}")
    except Exception as error:
        raise ValueError(f"{name}: {describe(error)}. Give {_JSON}") from error
    return arguments


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HOMES.clear)  # the parent's loops do not run in the child


class Enqueuing:
    """One call of :meth:`onceward.Once.enqueue`, which says what this raises.

    Args:
        store: the ledger.
        policy: its ``retention``, ``seal`` and ``lease`` count.
        observers: are told what is sent.
        prefix: the name of the Once.
    """

    def __init__(self, store: Store, policy: Policy, observers: Observers, prefix: str | None) -> None:
        self._store, self._policy, self._observers, self._prefix = store, policy, observers, prefix
        self._first_try: Future[None] | None = None

    def queue(
        self, task: object, args: Sequence[object], kwargs: Mapping[str, object], key: object, *, awaited: bool
    ) -> Steps[bool]:
        """Check a job, record it unless its key has one, and let this process send it. Return whether this call has recorded it.

        ``awaited`` is whether the caller is a coroutine, in the event loop that sends.
        """
        jobs = jobs_of(task)
        place = place_of(task, jobs)
        address = f"task:{place}"
        arguments = arguments_of(jobs, args, kwargs)
        # Never the namespace of a handler, which would take the job for its own completion. The parts are told apart, because
        # services can share a ledger.
        full = ledger_key(f"{'.'.join(filter(None, (self._prefix, 'enqueue')))}:{place}", key)
        write = alone(full, self._policy, address, arguments)._replace(due=send_lease(self._policy))
        jobs.settle(awaited=awaited)
        check_outbox(self._store)
        since = boottime()
        reply = yield from retry_transient(lambda: self._insert(write), boottime, patience(boottime))
        record = reply.record
        assert record is not None
        is_mine = record.owner == write.owner  # also if the reply to the insert was lost
        if is_mine and record.beat == write.beat:
            until = believed(self._store, self._policy, since)
            first_try: Future[None] | None = None
            if awaited and jobs.broker is not None and not sender.SENDER.pause_of(address):
                first_try = Future()
            if sender.send_soon(self._store, record, self._policy.seal, self._observers, until, first_try):
                self._first_try = first_try
        elif may_send(record, reply.now):
            sender.send_soon(self._store, record, self._policy.seal, self._observers)
        return is_mine

    async def sent(self) -> None:
        """Wait until the job that :meth:`queue` recorded is sent, or was tried: its event loop may end right after."""
        if self._first_try is not None:
            await asyncio.wait([asyncio.wrap_future(self._first_try)], timeout=SENT_WITHIN)

    def _insert(self, write: Write) -> Steps[Reply]:
        reply = yield from insert_messages(self._store, write)
        if not reply.won and decide(reply.record, reply.now, write.owner, None, self._policy) is not Verdict.REPLAY:
            raise StoreError(
                f"{write.key}: an open transaction holds its record, or a newer version wrote it", transient=True
            )
        return reply
