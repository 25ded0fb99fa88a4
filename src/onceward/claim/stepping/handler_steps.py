"""Runs the steps of one claim. Each is made once, recorded, and answered from the record on later attempts.

User code runs between the writes, in the care of ``running.run_under``: if an interrupt comes right after a step's function, its
result is recorded all the same.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from onceward.claim import called
from onceward.claim.called import OVER, RETURNED, Call
from onceward.claim.replays import Replays
from onceward.claim.running import run_under, run_under_async
from onceward.claim.stepping.answers import NOT_MADE, Made
from onceward.claim.stepping.functions import check_options, known
from onceward.claim.stepping.room import Room
from onceward.claim.stepping.writer import StepWriter
from onceward.core.drivers import Sleep, Steps
from onceward.errors import (
    ForkedClaim,
    LeaseLost,
    OncewardError,
    Parked,
    ResultUnavailable,
    ResultWarning,
    StepNotRecorded,
)
from onceward.keys.ledger_keys import step_name
from onceward.results.codec import Codec
from onceward.results.outcomes import completion, describe
from onceward.results.step_entries import LONGEST, Entry, entries_of

if TYPE_CHECKING:
    from onceward.claim.held import HeldClaim

_LOOK: Final = 0.01  # seconds between two looks for steps that still run
_ENTRY: Final = "entry"  # a call's place for what is recorded of it, so that it is made once
OnLapse = Literal["retry", "park"] | Callable[..., object]


class Step(NamedTuple):
    """One step of one attempt.

    Attributes:
        name: its name, in the form of a key.
        call: makes it.
        codec: how its result is stored.
        ask: finds out whether an earlier attempt made it; None if nobody must be asked.
        parks: whether nobody knows what an attempt made that ended in it.
        not_made: exceptions that say that it was not made.
    """

    name: str
    call: Callable[[], Any]
    codec: Codec
    ask: Callable[[], Any] | None
    parks: bool
    not_made: tuple[type[Exception], ...]


class HandlerSteps:
    """The steps of one claim.

    Attributes:
        parks: why the key is parked if the handler raises; None if it is not.
        failed: the error of a step that was made, and could not be recorded.
    """

    def __init__(self, claim: "HeldClaim") -> None:
        self._claim = claim
        self._writer = StepWriter(claim)
        self._used: set[str] = set()
        # Whether an earlier attempt may have begun a step of which nothing is recorded.
        self._follows = claim.attempt > 1 or claim.record.steps is not None
        self._stopped: str | None = None
        self.parks: str | None = None
        self.failed: OncewardError | None = None
        self._room = Room()

    def refusal(self) -> Parked | None:
        """Return why this attempt cannot succeed, whatever its handler returns."""
        record = self._claim.record
        return None if self._stopped is None else Parked(record.key, record.attempts, self._stopped, record.worker)

    def ended(self) -> Steps[bool]:
        """Wait for steps that still run beside a handler that failed: nobody may repeat them meanwhile.

        Returns:
            False if one still runs after a whole lease.
        """
        limit = self._claim.clock() + self._claim.policy.lease
        while self._room.running and not self._claim.lost:
            if self._claim.clock() >= limit:
                return False
            yield Sleep(_LOOK)
        return True

    def run(self, step: "Step | Made") -> object:
        """Make a step, or return its recorded result."""
        if isinstance(step, Made):
            return step.result
        try:
            self._check_room(step.name)
            if step.ask is not None:
                made = self._answered(step, step.ask())
                if made is not None:
                    self._record(step, self._entry(step, made.result, 0.0), made.result)
                    return made.result
            self._check_lease(step)
            if step.parks:
                self._writer.write(step.name, self._begun(step))
            call = Call(step.call)
            failure = run_under(None, call, partial(self._leave, step, self._claim.clock()))
            if failure is not None:
                raise failure
            return call[RETURNED]
        finally:
            self._room.leave(step.name)

    async def run_async(self, step: "Step | Made") -> object:
        """Like :meth:`run`, for a coroutine; awaits what can be awaited."""
        if isinstance(step, Made):
            return step.result
        try:
            self._check_room(step.name)
            if step.ask is not None:
                answer = step.ask()
                made = self._answered(step, await answer if hasattr(answer, "__await__") else answer)
                if made is not None:
                    await self._record_async(step, self._entry(step, made.result, 0.0), made.result)
                    return made.result
            self._check_lease(step)
            if step.parks:
                await self._writer.write_async(step.name, self._begun(step))
            call = Call(step.call)
            failure = await run_under_async(None, call, partial(self._leave_async, step, self._claim.clock()))
            if failure is not None:
                raise failure
            return call[RETURNED]
        finally:
            self._room.leave(step.name)

    # --- before its function ------------------------------------------------------------------------------------------

    def step(
        self,
        name: object,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        on_lapse: OnLapse,
        not_made: tuple[type[Exception], ...],
        *,
        awaited: bool,
    ) -> "Step | Made":
        """Check a step before anything runs. Return it, or its recorded result.

        Raises:
            TypeError, ValueError: an argument is wrong, or the name was used before in this attempt.
            Parked: an earlier attempt left it so that it must not run again. The key is parked when the handler ends.
            LeaseLost, StepNotRecorded: this attempt must not begin a step.
            OncewardError: the record has no room for it.
        """
        handler, codec = known(function)
        if handler.is_async and not awaited:
            raise TypeError(f"{function!r} is a coroutine function: write await claim.step_async(...)")
        check_options(on_lapse, not_made)
        text = step_name(name)
        self._check_open(text)
        self._used.add(text)
        entry = self._recorded().get(text)
        if entry is not None and entry.done:
            return self._replayed(entry, codec)
        if entry is not None and on_lapse == "park":
            raise self._stop(f"attempt {entry.attempt} ended in its step {text!r}, which may have been made")
        call, ask = partial(function, *args, **kwargs), None
        if callable(on_lapse) and (self._follows or entry is not None):
            ask = partial(on_lapse, self._claim.key(name), *args, **kwargs)
        return Step(text, call, codec, ask, on_lapse == "park", not_made)

    def _check_open(self, name: str) -> None:
        self._claim.check_usable()
        if self.failed is not None:
            raise self.failed
        if (refusal := self.refusal()) is not None:
            raise refusal
        if name in self._used:
            raise ValueError(
                f"{self._claim.record.key}: two steps of this attempt have the name {name!r}. Give each its own, in a loop "
                'for example ("mail", n)'
            )
        self._check_lease(name)

    def _check_lease(self, step: "Step | str") -> None:
        if self._claim.lost:
            name = step if isinstance(step, str) else step.name
            raise LeaseLost(self._claim.record.key, f"begin its step {name!r}")

    def _recorded(self) -> dict[str, Entry]:
        try:
            return entries_of(self._claim.record.steps)
        except ValueError as error:
            raise self._stop(f"its steps cannot be read: {error}") from error

    def _replayed(self, entry: Entry, codec: Codec) -> Made:
        claim = self._claim
        record = claim.record._replace(result=entry.text, error=entry.why)
        try:
            return Made(Replays(claim.policy, claim.clock, codec).recorded(record))
        except ResultUnavailable as error:
            raise self._stop(
                f"its step {entry.name!r} was made, and its result cannot be read: {error.reason}"
            ) from error

    def _stop(self, why: str) -> Parked:
        """Note that this attempt must not go on; return the error that says why."""
        self._stopped = self.parks = why
        refusal = self.refusal()
        assert refusal is not None
        return refusal

    def _check_room(self, name: str) -> None:
        if not self._room.fits(self._claim.record.steps, name):
            raise OncewardError(
                f"{self._claim.record.key}: no room for the step {name!r}: the steps of a record take at most {LONGEST} "
                "characters. Nothing of it ran. Return less from each step, or give each part a key of its own"
            )

    def _answered(self, step: Step, answer: object) -> Made | None:
        if isinstance(answer, Made):
            return answer
        if answer is NOT_MADE:
            return None
        raise TypeError(
            f"on_lapse of the step {step.name!r} returned {answer!r}: return onceward.Made(result) or onceward.NOT_MADE"
        )

    # --- after its function -------------------------------------------------------------------------------------------

    def _leave(self, step: Step, since: float, _: None, call: Call) -> BaseException | None:
        """Record how the function ended. After an interrupt, it is called again."""
        failure = called.failure(call)
        if failure is None:
            self._record(step, self._noted(step, call, since), call[RETURNED])
        elif self._ends_parked(step, failure):
            self._writer.write(step.name, None)
        call[OVER] = True
        return failure

    async def _leave_async(self, step: Step, since: float, _: None, call: Call) -> BaseException | None:
        """Like :meth:`_leave`, for a coroutine."""
        failure = called.failure(call)
        if failure is None:
            await self._record_async(step, self._noted(step, call, since), call[RETURNED])
        elif self._ends_parked(step, failure):
            await self._writer.write_async(step.name, None)
        call[OVER] = True
        return failure

    def _ends_parked(self, step: Step, failure: BaseException) -> bool:
        """Note what a failure means for a step that parks. Return whether its record must be struck out."""
        if not step.parks or not isinstance(failure, Exception):
            return False
        if isinstance(failure, (*step.not_made, called.NotBegun)):
            return True
        if isinstance(failure, self._claim.policy.final):  # an outcome, so nothing is open
            return False
        self.parks = f"its step {step.name!r} raised, and may have been made: {describe(failure)}"
        return False

    def _noted(self, step: Step, call: Call, since: float) -> Entry:
        """Return what to record of a step that was made: the same each time."""
        noted = call.get(_ENTRY)
        if not isinstance(noted, Entry):
            call[_ENTRY] = noted = self._entry(step, call[RETURNED], self._claim.clock() - since)
        return noted

    def _entry(self, step: Step, value: object, took: float) -> Entry:
        claim = self._claim
        outcome = completion(step.codec, claim.policy, value)
        known = (step.name, claim.attempt, True, claim.store_time(), took, claim.record.worker)
        text, why = outcome.result, outcome.error
        if text is not None:
            if self._room.fits(claim.record.steps, step.name, len(text)):
                return Entry(*known, msgspec.Raw(text.encode()))
            self._room.fits(claim.record.steps, step.name)  # without it
            why = f"it takes {len(text)} characters, and all steps of a record at most {LONGEST}"
        warnings.warn(
            f"{claim.record.key}: its step {step.name!r} is recorded without its result, so that a later attempt would be "
            f"parked: {why}",
            ResultWarning,
            stacklevel=2,
        )
        return Entry(*known, why=why)

    def _begun(self, step: Step) -> Entry:
        claim = self._claim
        return Entry(step.name, claim.attempt, done=False, at=claim.store_time(), worker=claim.record.worker)

    def _record(self, step: Step, entry: Entry, value: object) -> None:
        try:
            self._writer.write(step.name, entry)
        except (LeaseLost, ForkedClaim):
            raise
        except OncewardError as error:
            raise self._not_recorded(step, value, error) from error

    async def _record_async(self, step: Step, entry: Entry, value: object) -> None:
        try:
            await self._writer.write_async(step.name, entry)
        except (LeaseLost, ForkedClaim):
            raise
        except OncewardError as error:
            raise self._not_recorded(step, value, error) from error

    def _not_recorded(self, step: Step, value: object, error: OncewardError) -> StepNotRecorded:
        self.failed = failed = StepNotRecorded(self._claim.record.key, step.name, value, str(error))
        return failed
