"""A request whose key is claimed, until its answer is recorded: what every web face has in hand while its handler runs.

The record is tried for a time before the answer goes out, and continued after it. Otherwise an unreachable ledger would block finished
answers, and their workers, until the lease ends. The steps recognise their own earlier write. So the first try can stop at any
time, and the next one continues.
"""

from collections.abc import Awaitable, Callable, Coroutine
from threading import Thread
from typing import TypeVar

from onceward.claim import heartbeat
from onceward.claim.called import RAISED, RETURNED, Call, Under
from onceward.claim.held import HeldClaim
from onceward.core.drivers import Steps, settle, settle_async
from onceward.errors import Parked, ResultNotRecorded, StoreError
from onceward.http.answer import Answer, Recorded
from onceward.http.guarded import Exchange, Guarded, tell
from onceward.http.route import KeyedRequest
from onceward.observe.events import ROUTE
from onceward.observe.logs import logger

T = TypeVar("T")


def claim(guarded: Guarded, ask: KeyedRequest) -> "HeldRequest | Answer":
    """Claim the key of a request, or return the answer that its client gets without a run of the handler.

    Raises:
        Exception: one that is recorded as the outcome (``final``).
    """
    key = guarded.key(ask)
    token = ROUTE.set(ask.route)
    try:
        entry = guarded.guard.enter(key, ask.fingerprint, ask.provenance, comes=ask.comes)
        if isinstance(entry, HeldClaim):
            return HeldRequest(guarded, entry, ask.route)
        return guarded.rules.repeat(guarded.recorded(key, entry.value))
    except Exception as error:
        answer = guarded.refusal(error, ask.route)
    finally:
        ROUTE.reset(token)
    assert answer is not None  # no handler has run
    return answer


async def claim_async(guarded: Guarded, ask: KeyedRequest) -> "HeldRequest | Answer":
    """As :func:`claim`, for a coroutine."""
    key = guarded.key(ask)
    token = ROUTE.set(ask.route)
    try:
        entry = await guarded.guard.enter_async(key, ask.fingerprint, ask.provenance, comes=ask.comes)
        if isinstance(entry, HeldClaim):
            return HeldRequest(guarded, entry, ask.route)
        return guarded.rules.repeat(guarded.recorded(key, entry.value))
    except Exception as error:
        answer = guarded.refusal(error, ask.route)
    finally:
        ROUTE.reset(token)
    assert answer is not None  # as above
    return answer


class OutOfTime(StoreError):
    """The answer goes out before its record."""


class HeldRequest:
    """A request whose key is claimed, until its outcome is recorded. The face sets ``judge.began`` and ``ends_with_client``.

    It is a context around each try to record the outcome, and sends the requests of that try.
    """

    ends_with_client = False  # set it before you cancel the handler because the client has left
    is_over = False  # whether the claim has ended, apart from a recording that goes on behind its answer
    pending = False  # whether nothing is recorded yet, and the answer can wait no longer. If so, send it and call behind_async()
    recorder: Thread | None = None  # the thread in which the recording goes on, if it has one
    error: Exception | None = None  # why the answer could not be recorded, if the client gets another one
    _tries = 0
    _end = float("inf")  # when the first try must stop to send requests, on the guard's clock
    _make: Callable[[], Steps[None]] | None = None  # makes the steps that record; None if there is nothing to record
    _failure: Exception | None = None  # what is given back, not recorded
    _stopped: Parked | StoreError | None = None  # a step has stopped the handler, whatever it answered

    def __init__(self, guarded: Guarded, claim: HeldClaim, route: str) -> None:
        self.guarded = guarded
        self.claim = claim
        self.judge = claim.exchange = Exchange(guarded)
        self._route = route

    def call(self, function: Callable[[], T]) -> T:
        """Call a part of the handler under the claim. Its exception gives the key back or is recorded, and is raised."""
        with Under(self.claim):
            try:
                return function()
            except Exception as error:
                self.is_over = True
                self.settle(self.judge.outcome_of_error(error), raised=True)
                raise
            except BaseException:
                self.is_over = True
                self.claim.drop()
                raise

    async def call_async(self, function: Callable[[], Awaitable[T]]) -> T:
        """As :meth:`call`, for a coroutine."""
        with Under(self.claim):
            try:
                return await function()
            except Exception as error:
                self.is_over = True
                await self.settle_async(self.judge.outcome_of_error(error), raised=True)
                self._go_on()
                raise
            except BaseException:
                if not self.ends_with_client:
                    self.is_over = True
                    self.claim.drop()
                raise

    def end(self, answer: Answer, cut: str | None = None) -> Answer | None:
        """Record the handler's answer, or give the key back if the rules do not record it.

        Args:
            answer: the answer.
            cut: why its body cannot be replayed; None if it is complete.

        Returns:
            What the client gets instead of it; None for the answer itself.
        """
        return self.settle(self.judge.outcome(answer, cut))

    async def end_async(self, answer: Answer, cut: str | None = None) -> Answer | None:
        """As :meth:`end`, for a coroutine."""
        self.is_over = True
        instead = await self.settle_async(self.judge.outcome(answer, cut))
        self._go_on()
        return instead

    def settle(self, outcome: Recorded | Exception, *, raised: bool = False) -> Answer | None:
        """Record an outcome that ``judge`` has given, and return what :meth:`end` returns. If the handler ``raised``, nothing else is raised."""
        instead: Answer | None = None
        try:
            with self:
                if (make := self._begin(outcome)) is not None:
                    settle(make, self)
            self._go_on()
        except Exception as error:
            instead = self._refusal(error, raised=raised)
        self.is_over = True  # last: after an interrupt the server's close() must settle again
        return instead

    async def settle_async(self, outcome: Recorded | Exception, *, raised: bool = False) -> Answer | None:
        """As :meth:`settle`, for a coroutine. The caller runs what is pending."""
        try:
            with self:
                if (make := self._begin(outcome)) is not None:
                    await settle_async(make, self)
        except Exception as error:
            return self._refusal(error, raised=raised)
        return None

    def _refusal(self, error: Exception, *, raised: bool) -> Answer | None:
        if raised:  # the handler's own exception goes on
            tell(self.claim.record.key, error)
            return None
        instead = self.guarded.refusal(error, self._route, done=True)
        self.error = None if instead is None else error
        return instead

    # --- the first try -----------------------------------------------------------------------------------------------

    def _begin(self, outcome: Recorded | Exception) -> Callable[[], Steps[None]] | None:
        """Begin a try that ends in time. Return the maker of its steps; None if there is nothing to record."""
        claim, guard, self.pending = self.claim, self.guarded.guard, False  # an earlier try may have been interrupted
        if isinstance(outcome, Exception):
            self._failure = outcome
        else:
            if outcome.is_failure:
                claim.send_nothing()
            if claim.settled is None and claim.chain is not None:
                self._failure = self._stopped = claim.chain.refusal()
        call = Call(None, {RETURNED: outcome} if self._failure is None else {RAISED: self._failure})
        _, self._make = claim.end_of(call)
        if self.guarded.within is not None:
            self._end = guard.clock() + self.guarded.within
        return self._make

    def exchange_async(self, request: object) -> Coroutine[object, object, object]:
        """As :meth:`exchange`, for a coroutine."""
        self._check()
        return self.guarded.guard.store.exchange_async(request)

    def exchange(self, request: object) -> object:
        """Send a request of the first try. Raises OutOfTime if the answer must go out now."""
        self._check()
        return self.guarded.guard.store.exchange(request)

    def _check(self) -> None:
        self._tries += 1
        if self._tries > 1 and self.guarded.guard.clock() >= self._end:
            raise OutOfTime("the ledger has not taken the record in time. Recording continues behind the answer")

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        claim = self.claim
        try:
            if isinstance(error, ResultNotRecorded) and isinstance(error.__cause__, OutOfTime) and not claim.lost:
                self.pending = True
                tell(f"{claim.record.key}: the answer goes out, and recording continues", error.__cause__)
            elif error is None and self._make is not None:
                if self._failure is None:
                    claim.warn()
                elif self.guarded.within is not None:  # a failing claim raises nothing
                    self.pending = claim.settled is None and not claim.lost
        finally:
            if self.pending:
                claim.telling.forget()  # what goes on behind the answer tries again
            else:
                heartbeat.HEARTBEAT.forget(claim)
                claim.tell()
        if error is None and self._stopped is not None and not self.pending:
            raise self._stopped
        return self.pending

    # --- what goes on behind the answer -------------------------------------------------------------------------------

    async def behind_async(self) -> None:
        """Try until the outcome is recorded, for at most two leases. Errors are logged; only interrupts are raised."""
        assert self._make is not None  # else nothing is pending
        why: object = None
        try:
            await settle_async(self._make, self.guarded.guard.store)
        except Exception as error:  # no caller is left
            why = error.__cause__ or error
        finally:
            self._finish(why)

    def _behind(self) -> None:
        assert self._make is not None  # as above
        why: object = None
        try:
            settle(self._make, self.guarded.guard.store)
        except Exception as error:
            why = error.__cause__ or error
        finally:
            self._finish(why)

    def _go_on(self) -> None:
        """Run what is pending in a thread, because a loop ends with its server. The interpreter waits for it before it exits."""
        if not self.pending:
            return
        self.recorder = thread = Thread(target=self._behind, name="onceward-recorder", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter exits
            self.recorder = None
            self._behind()

    def _finish(self, why: object) -> None:
        if self.claim.settled is None:
            logger().error(
                "%s: answered, but not recorded: %s. A retry gets 409 until the lease ends. After that, it runs again",
                self.claim.record.key,
                why or "the ledger has not taken it",
            )
        heartbeat.HEARTBEAT.forget(self.claim)
        self.claim.tell()
