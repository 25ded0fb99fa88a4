"""Guarded functions within AWS Lambda's durable functions: a suspension is no end, and the same execution goes on with its claim.

A durable function ends by an exception at each wait, and runs again from its beginning when the wait is over. So the owner of the claim
is made from the execution's ARN and branch: the next run meets its own claim. Between two runs nobody renews the lease, so it lasts as long as
an execution can (docs.aws.amazon.com/lambda, "Configure Lambda durable functions": ExecutionTimeout is at most 366 days).
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from onceward.claim.guard import Guard
from onceward.claim.held import held
from onceward.core.drivers import Steps
from onceward.core.policy import Policy
from onceward.core.recovery import go_on, leave
from onceward.core.register import Register
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.errors import StoreError

SDK: Final = "aws_durable_execution_sdk_python"
LONGEST: Final = 366 * 86400.0  # seconds
Function = Callable[..., Any]
_RUNNING: Final[dict[tuple[str, int], object]] = {}  # by owner, and the id of what each run has of its own


class _RunsAgain(BaseException):
    """Stands for an error after which Lambda runs the same execution again: the handler has not ended."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def context_of(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    """Return the context of a durable execution that is an argument; None if there is none.

    Raises:
        RuntimeError: the SDK is too old.
    """
    if SDK not in sys.modules:
        return None
    from aws_durable_execution_sdk_python.exceptions import InvocationError

    is_old = not hasattr(InvocationError, "is_retryable")  # the first versions do not name the execution either
    for value in (*args, *kwargs.values()):
        if is_old and type(value).__module__.startswith(SDK):
            raise RuntimeError(
                "this version of aws-durable-execution-sdk-python does not say after which errors an execution goes on: install 1.5 or newer"
            )
        if isinstance(getattr(getattr(value, "execution_context", None), "durable_execution_arn", None), str):
            return value
    return None


def refuse(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Raise TypeError if the context of a durable execution is among the arguments of ``once.run`` or of a coroutine function.

    AWS's SDK numbers the steps of a context. A recorded call takes no numbers in the next run, so later steps would get its results.
    """
    if context_of(args, kwargs) is not None:
        raise TypeError(
            "a DurableContext fits only a plain function under @once(key=...) that does all of the context's work: decorate the function "
            "under @durable_execution, or the one that you give to context.run_in_child_context(). Else the next run of the execution "
            "would give later steps the results of earlier ones"
        )


def execution_of(context: Any) -> str:
    """Return the ARN of the durable execution of a context, and its branch.

    Two branches of one execution are two callers: its ``map`` and ``parallel`` run them at once.
    """
    branch = getattr(context, "_step_id_prefix", None)  # no public name tells; None outside of branches
    arn: str = context.execution_context.durable_execution_arn
    return arn if branch is None else f"{arn}\n{branch}"


def call(
    guard: Guard,
    key: str,
    fingerprint: str | None,
    function: Function,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    whole: bool = False,
    context: Any = None,
) -> object:
    """Run ``function`` as :meth:`Guard.call` does; within a durable function, for its execution.

    That is the execution of the ``context`` that is given, or of one among the arguments.
    """
    context = context or context_of(args, kwargs)
    if context is None:
        return guard.call(key, fingerprint, function, args, kwargs, whole=whole)
    from hashlib import sha256  # OpenSSL, which no other cold start needs

    owner = sha256(f"{execution_of(context)}\n{key}".encode()).hexdigest()[:32]
    caller = object()
    run = (owner, id(context.execution_context))
    try:
        if _RUNNING.setdefault(run, caller) is not caller:  # another thread of this run has the key
            return guard.call(key, fingerprint, function, args, kwargs, whole=whole)
        guard.lasting = guard.lasting or _lasting(guard)
        return guard.lasting.call(key, fingerprint, partial(_run, function), args, kwargs, whole=whole, owner=owner)
    except _RunsAgain as again:
        raise again.error from again.error.__cause__
    finally:
        if _RUNNING.get(run) is caller:
            del _RUNNING[run]


def _lasting(guard: Guard) -> Guard:
    """Return a guard whose leases last as long as an execution can, unless another lease than the default was chosen."""
    lease = guard.policy.lease if guard.policy.lease != Policy().lease else LONGEST
    lasting = guard.claiming_by(_claim, leave, guard.policy._replace(lease=lease, heartbeat=None))
    lasting.inputs = guard.inputs  # which refuse the context
    return lasting


def _claim(store: Register, bid: Bid) -> Steps[Won | Replay | Refused]:
    try:
        return (yield from go_on(store, bid))
    except StoreError as error:
        if not error.transient:
            raise
        from aws_durable_execution_sdk_python.exceptions import InvocationError

        # Another error would end the execution, and leave its key claimed. After this one, Lambda invokes it again.
        raise InvocationError(str(error)) from error


def _run(function: Function, *args: object, **kwargs: object) -> object:
    from aws_durable_execution_sdk_python.exceptions import BackgroundThreadError, InvocationError

    held().function = function
    try:
        return function(*args, **kwargs)
    except InvocationError as error:
        if not error.is_retryable():
            raise
        raise _RunsAgain(error) from error
    except BackgroundThreadError as error:  # of a checkpoint, which AWS can have refused for good
        source = error.source_exception
        if isinstance(source, InvocationError) and not source.is_retryable():
            raise source from error
        raise
