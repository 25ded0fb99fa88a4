"""A task of a task queue, guarded: its key comes from its arguments, its id or a window of time.

A face calls a ``GuardedTask`` and gets a ``TaskEnd``, which says what its queue does with the task::

    end = task.call(TaskCall(message.id, message.args, message.kwargs))

What is no ``Exception`` (a time limit, a shutdown, a cancellation) is raised: the key stays claimed to the lease's end.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Unpack

from onceward.batch.outcomes import BatchOutcome, Status
from onceward.claim.behind import revealing
from onceward.claim.factory import refuse_guarded
from onceward.claim.handler import handler_of
from onceward.claim.lease import innermost
from onceward.consumers.dead_letters import dead_headers
from onceward.consumers.delivery import MalformedRecord, no_header
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.origin import provenance_in
from onceward.core.policy import Options
from onceward.errors import (
    Busy,
    KeyMissing,
    LeaseLost,
    Mismatch,
    OncewardError,
    Parked,
    ResultNotRecorded,
    ResultUnavailable,
    StepNotRecorded,
    StoreError,
    UnknownNeed,
    UnknownStatus,
)
from onceward.keys.ledger_keys import ledger_key
from onceward.keys.signatures import CallReader, without
from onceward.observe.logs import logger
from onceward.once import Once, check_once

if TYPE_CHECKING:
    from onceward.batch.windows import At, WindowKey
    from onceward.keys.reading import KeySource
    from onceward.observe.spans import Incoming

Postpones = Callable[[Exception], bool]

_SOON: Final = 1.0  # seconds, the least pause of a busy key
_TROUBLE: Final = 5.0  # seconds until a ledger that gave no answer is asked again
_BROKEN: Final = 60.0  # the same for a ledger that refuses, or a record of a newer version

# The ledger's own trouble. It says nothing of the task, so it must not use up the task's retries.
_PAUSES: Final = {LeaseLost: _SOON, StepNotRecorded: _TROUBLE, UnknownNeed: _BROKEN, UnknownStatus: _BROKEN}
_REFUSALS: Final = (Parked, Mismatch, KeyMissing, MalformedRecord)


class TaskOptions(Options, total=False):
    """The keywords of a guarded task, besides those of :class:`onceward.Policy`.

    Attributes:
        key: a JMESPath expression that begins with a parameter, such as "order.id" for ``def charge(order)``, or a callable
            that gets the arguments that it names. By default the task's id, which retries and redeliveries keep.
        fingerprint: the same, or True for all arguments that the queue does not fill in: what must not change under one key.
        per: a window of time instead of a key, such as "1h": the task runs once in each, whoever sends it.
        at: with ``per``, as for :meth:`onceward.Once.per`.
        offset: the same.
        name: the namespace of the keys; by default the function's module and qualified name.
    """

    key: "KeySource | None"
    fingerprint: "KeySource | bool | None"
    per: str | float | None
    at: "At | None"
    offset: float
    name: str | None


class TaskCall(NamedTuple):
    """One call of a task: its id (None for a call outside a queue), its arguments, and where it came from.

    ``fingerprint`` is that of a message whose id can come again for another one; None if ids never do.
    """

    id: str | None
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    queue: str | None = None
    header: Callable[[str], object] = no_header
    fingerprint: str | None = None


class TaskEnd(NamedTuple):
    """What a queue does with a task.

    Attributes:
        status: "done" (the effect is recorded, now or before), "ended" (its recorded outcome is an error, or cannot be shown: another
            try does not help), "again" (it must come again, and that is no retry), "refused" (another try does not help: it goes
            to the dead letters), or "failed" (the queue's own retries decide).
        value: the result, also of an earlier run.
        error: why it is not done, or the ``final`` exception that is its recorded outcome.
        seconds: after how many seconds it comes again.
    """

    status: Literal["done", "ended", "again", "refused", "failed"]
    value: object = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def why(self) -> str:
        """The error for logs, without the text of a handler's error, which may quote the payload."""
        if isinstance(self.error, KeyMissing | MalformedRecord):
            return str(self.error)
        key = getattr(self.error, "key", None)
        return type(self.error).__name__ + (f". `onceward show {key}` says why" if key else "")

    def dead_headers(self, queue: str, receives: int) -> Mapping[str, str]:
        """Return the headers of the dead letter of a refused task."""
        kind: Status = (
            "parked"
            if isinstance(self.error, Parked)
            else "mismatch"
            if isinstance(self.error, Mismatch)
            else "malformed"
        )
        outcome = BatchOutcome(kind, None, getattr(self.error, "key", None), error=self.error)
        return dead_headers(outcome, queue, receives)

    def result(self) -> object:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class GuardedTask:
    """A task's function under a guard.

    Args:
        once: the ledger and the defaults of the policy.
        function: the task's own function.
        source: the name of the task queue, for traces.
        postpones: tells of an exception of the function whether it is no failure, but says what follows. Then the key is given
            back, also with ``on_error="park"``, unless the function has succeeded and that could not be recorded.
        key: for this and the others see :class:`TaskOptions`.
        fingerprint: as there.
        per: as there.
        at: as there.
        offset: as there.
        name: as there.
        filled: the parameters that the queue fills in, which are no part of ``fingerprint=True``.
        own: the default name; None is that of the function.
        also_final: exceptions that are recorded outcomes, besides those of the policy.
        **policy: as there.

    Attributes:
        is_async: whether to use :meth:`call_async`.
        policy: of the task. Its ``final`` exceptions are recorded outcomes; a retry only raises them again.
        refusals: the errors of tasks for which another try does not help, those included.
        signature: the function's, without the claim.

    Raises:
        ValueError, TypeError: an option is not valid, or does not fit the function.
    """

    def __init__(
        self,
        once: Once,
        function: Callable[..., object],
        source: str,
        postpones: Postpones,
        *,
        key: "KeySource | None" = None,
        fingerprint: "KeySource | bool | None" = None,
        per: str | float | None = None,
        at: "At | None" = None,
        offset: float = 0.0,
        name: str | None = None,
        filled: Collection[str] = (),
        own: str | None = None,
        also_final: tuple[type[Exception], ...] = (),
        **policy: Unpack[Options],
    ) -> None:
        check_once(once, "exactly({}, key='order.id')")
        refuse_guarded(function)
        if per is None and (at is not None or offset):
            raise ValueError("at= and offset= choose a window: give per=, too, as in per='1h'")
        if per is None and key is None and fingerprint:
            raise ValueError("fingerprint= needs key=: copies of one message, which share its id, never differ")
        if per is not None and (key is not None or fingerprint):
            raise ValueError("the key is the start of the window that per= gives: leave out key= and fingerprint=")
        self._source, self._function = source, revealing(function, postpones, gives_back=True)
        handler = handler_of(function)
        self.is_async, self.signature = handler.is_async, without(function, handler.claim)
        policy = {**policy, "final": (*once.guards.policy(policy).final, *also_final)}
        self.policy = once.guards.policy(policy)
        if self.policy.on_busy == "skip":
            raise ValueError(
                'on_busy="skip" would end a task that is not done, such as one whose worker was killed: leave it out, or give '
                'on_busy="raise". A busy task comes again by itself'
            )
        name = once.guards.apart(name, own or function) or own
        self.refusals: tuple[type[Exception], ...] = (*_REFUSALS, ResultUnavailable, *self.policy.final)
        self._window: WindowKey | None = None
        if per is not None:
            from onceward.batch.windows import Windows, keyed_by_window

            keyed = keyed_by_window(once.guards, Windows(per, offset), name, at, policy)
            self._guard, self._window, _ = keyed(self._function)
            return
        self._guard, _ = once.guards.for_function(self._function, name, policy)
        self._read = None
        if key is not None:
            reader = CallReader(function, key, fingerprint, handler.claim, filled=filled)
            self._read = reader.under(self._guard.name)

    @property
    def runs_here(self) -> bool:
        """Whether the caller is in the task's own function."""
        claim = innermost()
        while claim is not None and (claim.left or claim.function is not self._function):
            claim = claim.outer
        return claim is not None

    def call(self, call: TaskCall) -> TaskEnd:
        """Run the task once for its key, in this thread."""
        key: str | None = None
        try:
            key, mark = drive(self._key(call), self._guard.store)
            value = self._guard.call(
                key,
                mark,
                self._function,
                call.args,
                call.kwargs,
                **self._whence(call),
            )
        except Exception as error:
            return self._ended(error, key)
        return TaskEnd("done", value)

    async def call_async(self, call: TaskCall) -> TaskEnd:
        """Like :meth:`call`, for a coroutine function."""
        key: str | None = None
        try:
            key_and_mark = await drive_async(self._key(call), self._guard.store)
            key, mark = key_and_mark
            value = await self._guard.call_async(
                key,
                mark,
                self._function,
                call.args,
                call.kwargs,
                **self._whence(call),
            )
        except Exception as error:
            return self._ended(error, key)
        return TaskEnd("done", value)

    def _key(self, call: TaskCall) -> Steps[tuple[str, str | None]]:
        if self._window is not None:
            return (yield from self._window(call.args, call.kwargs)), None
        if self._read is not None:
            return self._read(call.args, call.kwargs)
        if call.id is None:
            raise KeyMissing(
                f"{self._guard.name}: the key is the task's id, and a call outside the queue has none, so nothing ran. "
                "Send the task, or give key="
            )
        return ledger_key(self._guard.name, call.id), call.fingerprint

    def _whence(self, call: TaskCall) -> dict[str, Any]:
        def comes() -> "Incoming":
            from onceward.observe.spans import Incoming  # only who makes spans asks

            return Incoming(call.header, self._source, call.queue, call.id)

        return {"comes": comes, "provenance": provenance_in(call.header)}

    def _ended(self, error: Exception, key: str | None) -> TaskEnd:
        """Return what becomes of a task whose guarded call raised."""
        if key is None and not isinstance(error, OncewardError):
            kind = type(error).__name__  # its text may quote the arguments
            fault = MalformedRecord(
                f"{self._guard.name}: no key can be made from the task's arguments, and nothing ran: {kind}"
            )
            fault.__cause__ = error
            return TaskEnd("refused", error=fault)
        if isinstance(error, StoreError):
            return TaskEnd("again", error=error, seconds=_TROUBLE if error.transient else _BROKEN)
        if key is not None and isinstance(error, OncewardError) and getattr(error, "key", key) != key:
            return TaskEnd("failed", error=error)  # the task itself called another guarded function
        if isinstance(error, ResultNotRecorded):
            logger().error("the task is done, but this could not be recorded: its duplicates may run again: %s", error)
            return TaskEnd("done", error.result)  # if it came again, the effect would be made twice
        if isinstance(error, Busy):
            return TaskEnd("again", error=error, seconds=_pause(error))
        if type(error) in _PAUSES:
            return TaskEnd("again", error=error, seconds=_PAUSES[type(error)])
        if isinstance(error, (*self.policy.final, ResultUnavailable)):
            return TaskEnd("ended", error=error)
        return TaskEnd("refused" if isinstance(error, _REFUSALS) else "failed", error=error)


def _pause(busy: Busy) -> float:
    """Return the seconds until a busy task comes again: as long as its key is known, so that short tasks have short pauses."""
    known_for = busy.retry_after if busy.known_for is None else busy.known_for
    return max(_SOON, min(busy.retry_after, known_for))
