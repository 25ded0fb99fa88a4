"""A request whose key is claimed, until its answer is recorded: what every web face has in hand while its handler runs."""

from collections.abc import Awaitable, Callable
from threading import Thread
from typing import TypeVar

from onceward.claim.held import HeldClaim
from onceward.claim.running import Under
from onceward.core.drivers import settle, settle_async
from onceward.http.answer import Answer, Recorded
from onceward.http.guarded import Exchange, Guarded
from onceward.http.recording import Recording, tell
from onceward.http.route import KeyedRequest
from onceward.observe.events import ROUTE

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
        return guarded.rules.repeat(guarded.recorded(key, entry.value), ask.lines)
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
        return guarded.rules.repeat(guarded.recorded(key, entry.value), ask.lines)
    except Exception as error:
        answer = guarded.refusal(error, ask.route)
    finally:
        ROUTE.reset(token)
    assert answer is not None  # as above
    return answer


class HeldRequest:
    """A request whose key is claimed, until its outcome is recorded. The face sets ``exchange.began`` and ``ends_with_client``."""

    ends_with_client = False  # set it before you cancel the handler because the client has left
    is_over = False  # whether the claim has ended, apart from a recording that goes on behind its answer
    pending: Recording | None = None  # the recording that goes on behind the answer
    recorder: Thread | None = None  # the thread in which it goes on, if it has one
    error: Exception | None = None  # why the answer could not be recorded, if the client gets another one

    def __init__(self, guarded: Guarded, claim: HeldClaim, route: str) -> None:
        self.guarded = guarded
        self.claim = claim
        self.exchange = claim.exchange = Exchange(guarded)
        self._route = route

    def call(self, function: Callable[[], T]) -> T:
        """Call a part of the handler under the claim. Its exception gives the key back or is recorded, and is raised."""
        with Under(self.claim):
            try:
                return function()
            except Exception as error:
                self.is_over = True
                try:
                    self._record(self.exchange.outcome_of_error(error))
                except Exception as trouble:  # the handler's own exception goes on
                    tell(self.claim.record.key, trouble)
                raise
            except BaseException:
                self.is_over = True
                self.guarded.guard.drop(self.claim)
                raise

    async def call_async(self, function: Callable[[], Awaitable[T]]) -> T:
        """As :meth:`call`, for a coroutine."""
        with Under(self.claim):
            try:
                return await function()
            except Exception as error:
                self.is_over = True
                await self.fail_async(error)
                self._go_on()
                raise
            except BaseException:
                if not self.ends_with_client:
                    self.is_over = True
                    self.guarded.guard.drop(self.claim)
                raise

    def end(self, answer: Answer, cut: str | None = None) -> Answer | None:
        """Record the handler's answer, or give the key back if the rules do not record it.

        Args:
            answer: the answer.
            cut: why its body cannot be replayed; None if it is complete.

        Returns:
            What the client gets instead of it; None for the answer itself.
        """
        return self.settle(self.exchange.outcome(answer, cut))

    def settle(self, outcome: Recorded | Exception) -> Answer | None:
        """Record an outcome of the exchange, and return what :meth:`end` returns."""
        instead: Answer | None = None
        try:
            self._record(outcome)
        except Exception as error:
            instead = self._refusal(error)
        self.is_over = True  # last: after an interrupt the server's close() must settle again
        return instead

    async def end_async(self, answer: Answer, cut: str | None = None) -> Answer | None:
        """As :meth:`end`, for a coroutine."""
        self.is_over = True
        instead = await self.settle_async(self.exchange.outcome(answer, cut))
        self._go_on()
        return instead

    async def settle_async(self, outcome: Recorded | Exception, *, raised: bool = False) -> Answer | None:
        """As :meth:`settle`, for a coroutine. The caller runs what is pending. If the handler ``raised``, nothing else is raised."""
        try:
            with Recording(self.guarded.guard, self.claim, outcome, self.guarded.within) as recording:
                if (make := recording.begin()) is not None:
                    await settle_async(make, recording)
        except Exception as error:
            if not raised:
                return self._refusal(error)
            tell(self.claim.record.key, error)
            return None
        if recording.pending:
            self.pending = recording
        return None

    async def fail_async(self, error: Exception) -> None:
        """Record that the handler has raised ``error``, which goes on. The caller runs what is pending."""
        await self.settle_async(self.exchange.outcome_of_error(error), raised=True)

    def _record(self, outcome: Recorded | Exception) -> None:
        with Recording(self.guarded.guard, self.claim, outcome, self.guarded.within) as recording:
            if (make := recording.begin()) is not None:
                settle(make, recording)
        if recording.pending:
            self.pending = recording
            self._go_on()

    def _go_on(self) -> None:
        """Run what is pending in a thread, because a loop ends with its server."""
        if self.pending is not None:
            self.recorder = self.pending.start()

    def _refusal(self, error: Exception) -> Answer | None:
        instead = self.guarded.refusal(error, self._route, done=True)
        self.error = None if instead is None else error
        return instead
