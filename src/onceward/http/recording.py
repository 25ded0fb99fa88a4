"""The record of an answer: tried for a time before the answer goes out, and continued after it.

Otherwise an unreachable ledger would block finished answers, and their workers, until the lease ends.
The steps recognise their own earlier write. So the first try can stop at any time, and the next one continues.
"""

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Final, Self

from onceward.claim import heartbeat
from onceward.claim.guard import Guard
from onceward.claim.held import HeldClaim
from onceward.core.clock import boottime
from onceward.core.drivers import Steps, settle, settle_async
from onceward.errors import Parked, ResultNotRecorded, StoreError
from onceward.http.answer import Recorded

_LOG: Final = logging.getLogger("onceward")
Make = Callable[[], Steps[None]]


class OutOfTime(StoreError):
    """The answer goes out before its record."""


class Recording:
    """How one claim of a request ends.

    Args:
        guard, claim: the claim and its guard.
        outcome: the answer to record, or the handler's exception.
        within: seconds for which the answer waits; None waits until it is recorded.

    Record the outcome in its ``with`` block, which raises what :meth:`Guard.leave` raises, for as long as the answer can wait.

    Attributes:
        pending: whether that time is over and nothing is recorded yet. If so, send the answer and call :meth:`behind`.
    """

    pending = False
    _tries = 0
    _end = float("inf")  # when the first try must stop to send requests, on the guard's clock
    _make: Make | None = None  # None if there is nothing to record
    _stopped: Parked | StoreError | None = None  # a step has stopped the handler, whatever it answered

    def __init__(self, guard: Guard, claim: HeldClaim, outcome: Recorded | Exception, within: float | None) -> None:
        self._guard = guard
        self._claim = claim
        self._outcome = outcome
        self._failure = outcome if isinstance(outcome, Exception) else None
        self._within = within

    def exchange(self, request: object) -> object:
        """Send a request of the first try. Raises OutOfTime if the answer must go out now."""
        self._check()
        return self._guard.store.exchange(request)

    def exchange_async(self, request: object) -> Coroutine[object, object, object]:
        """As :meth:`exchange`, for a coroutine."""
        self._check()
        return self._guard.store.exchange_async(request)

    def _check(self) -> None:
        self._tries += 1
        if self._tries > 1 and self._guard.clock() >= self._end:
            raise OutOfTime("the ledger has not taken the record in time. Recording continues behind the answer")

    def begin(self) -> Make | None:
        """Begin the first try, which ends in time. Return the maker of its steps; None if there is nothing to record."""
        if isinstance(self._outcome, Recorded) and self._outcome.is_failure:
            self._claim.send_nothing()
        if self._failure is None and self._claim.settled is None and self._claim.chain is not None:
            self._failure = self._stopped = self._claim.chain.refusal()
        self._make = self._guard.ending(self._claim, self._outcome, self._failure)
        if self._within is not None:
            self._end = self._guard.clock() + self._within
        return self._make

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        try:
            if error is not None:
                return isinstance(error, ResultNotRecorded) and self._is_late(error)
            if self._make is not None:
                if self._failure is None:
                    self._claim.warn()
                elif self._within is not None:  # a failing claim raises nothing
                    self.pending = self._claim.settled is None and not self._claim.lost
        finally:
            if self.pending:
                self._claim.telling.forget()  # behind() tries again
            else:
                heartbeat.HEARTBEAT.forget(self._claim)
                self._claim.tell()
        if self._stopped is not None and not self.pending:
            raise self._stopped
        return False

    def _is_late(self, error: ResultNotRecorded) -> bool:
        self.pending = isinstance(error.__cause__, OutOfTime) and not self._claim.lost
        if self.pending:
            tell(f"{self._claim.record.key}: the answer goes out, and recording continues", error.__cause__ or error)
        return self.pending

    def behind(self) -> None:
        """Try until the outcome is recorded, for at most two leases. Errors are logged; only interrupts are raised."""
        try:
            assert self._make is not None  # else nothing is pending
            settle(self._make, self._guard.store)
        except Exception as error:  # no caller is left
            self._fail(error)
        finally:
            self._finish()

    async def behind_async(self) -> None:
        """As :meth:`behind`, for a coroutine."""
        try:
            assert self._make is not None  # as above
            await settle_async(self._make, self._guard.store)
        except Exception as error:
            self._fail(error)
        finally:
            self._finish()

    def start(self) -> threading.Thread | None:
        """Run :meth:`behind` in a thread. The interpreter waits for it before it exits."""
        thread = threading.Thread(target=self.behind, name="onceward-recorder", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter exits
            self.behind()
            return None
        return thread

    def _fail(self, error: Exception) -> None:
        _LOG.error(
            "%s: answered, but not recorded: %s. A retry gets 409 until the lease ends. After that, it runs again",
            self._claim.record.key,
            error.__cause__ or error,
        )

    def _finish(self) -> None:
        if self._claim.settled is None and self._failure is not None:
            _LOG.error(
                "%s: failed, and its key could not be given back. It is free when the lease ends",
                self._claim.record.key,
            )
        heartbeat.HEARTBEAT.forget(self._claim)
        self._claim.tell()


_AGAIN: Final = 60.0  # seconds after which a kind is logged with its traceback again


# For each kind of error: when it was logged with its traceback, and how often it came since.
_KINDS: Final[dict[tuple[type[BaseException], type[BaseException] | None], tuple[float, int]]] = {}


def tell(what: str, error: BaseException) -> None:
    """Log an error that concerns ``what``: the first of its kind, then the 10th, the 100th and so on."""
    now = boottime()
    kind = type(error), None if error.__cause__ is None else type(error.__cause__)
    since, count = _KINDS.get(kind, (0.0, 0))
    if not count or now - since > _AGAIN:
        _KINDS[kind] = now, 1
        _LOG.error("%s: %s", what, error, exc_info=error)
        return
    _KINDS[kind] = since, count + 1
    if str(count + 1).strip("0") == "1":
        _LOG.error("%s: %s (%d times in %.0f s)", what, error, count + 1, now - since)
