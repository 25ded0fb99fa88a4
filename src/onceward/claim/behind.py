"""What of a claim's own trouble is behind an exception of its handler."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, cast

from onceward.claim.handler import handler_of
from onceward.claim.held import held
from onceward.errors import LeaseLost, OncewardError

if TYPE_CHECKING:
    from onceward.claim.held import HeldClaim

Function = Callable[..., object]


def revealing(function: Function, tells: Callable[[Exception], bool], *, gives_back: bool = False) -> Function:
    """Return a handler's function, which raises its claim's own trouble instead of what hides it.

    Args:
        function: the handler's.
        tells: returns whether an exception is no failure, but says what follows. That one is raised as it is.
        gives_back: whether the key is then given back, unless the function has succeeded and that could not be recorded.
    """

    def reveal(claim: "HeldClaim", error: Exception) -> bool:
        """Return whether to give the key back."""
        if tells(error):
            return gives_back  # unless the function has succeeded: release() then raises
        trouble = trouble_behind(claim, error)
        if trouble is not None and trouble is not error:
            raise trouble from error
        return False

    if handler_of(function).is_async:

        @wraps(function)
        async def run_async(*args: object, **kwargs: object) -> object:
            claim = held()
            try:
                return await cast("Awaitable[object]", function(*args, **kwargs))
            except Exception as error:
                if reveal(claim, error):
                    with suppress(OncewardError):  # the guard gives it back, too
                        await claim.release_async(str(error))
                raise

        return run_async

    @wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        claim = held()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if reveal(claim, error):
                with suppress(OncewardError):  # as above
                    claim.release(str(error))
            raise

    return run


def trouble_behind(claim: "HeldClaim", error: Exception) -> OncewardError | None:
    """Return why the attempt of ``claim`` could not be recorded; None if ``error`` is all that there is.

    Task groups, and handlers that raise errors of their own, hide what onceward has raised.
    """
    if claim.settled is not None:
        return None
    if claim.in_vain is not None:
        return claim.in_vain
    if claim.chain is not None and claim.chain.notes.failed is not None:
        return claim.chain.notes.failed
    return _lost(error, claim.record.key) if claim.lost else None


def _lost(error: BaseException, key: str) -> LeaseLost | None:
    """Return the LeaseLost of ``key`` that ``error`` is, contains, or was raised for."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, LeaseLost) and one.key == key:
            return one
        seen.add(id(one))
        todo += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return None
