"""Runs the steps of one claim. Each is made once, recorded, and answered from the record on later attempts.

User code runs between the writes, in the care of ``called.run_under``: if an interrupt comes right after a step's function, its
result is recorded all the same.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from onceward.claim import called
from onceward.claim.called import OVER, RETURNED, Call, run_under, run_under_async
from onceward.claim.claim import OnLapse
from onceward.claim.handler import Handler, handler_of
from onceward.claim.replays import Replays
from onceward.claim.stepping.attempt import INNERMOST, NOT_MADE, Made, StepsOfAttempt
from onceward.claim.stepping.notes import Note, fetch
from onceward.core.arguments import check_exceptions
from onceward.core.drivers import Sleep, Steps, drive, drive_async
from onceward.errors import ResultUnavailable, StoreError
from onceward.results.codec import Codec
from onceward.results.outcomes import describe
from onceward.results.step_entries import Entry

_LOOK: Final = 0.01  # seconds between two looks for steps that still run
_NOTE: Final = "note"  # a call's place for what is recorded of it, so that it is made once
_NO_SPAN: Final = nullcontext()
_KNOWN: "WeakKeyDictionary[Callable[..., object], tuple[Handler, Codec]]" = WeakKeyDictionary()  # by function


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


class RecordedStep(NamedTuple):
    """A step that an earlier attempt has made, and how its result is stored."""

    entry: Entry
    codec: Codec


class HandlerSteps(StepsOfAttempt):
    """Makes the steps of one claim."""

    def ended(self, limit: Callable[[float], float] = float) -> Steps[bool]:
        """Wait for steps that still run beside a handler that failed: nobody may repeat them meanwhile.

        Args:
            limit: returns an earlier time for the end of the wait.

        Returns:
            False if one still runs after a whole lease.
        """
        self.is_over = True
        until = limit(self._claim.clock() + self._claim.policy.lease)
        while self.notes.running and not self._claim.lost:
            if self._claim.clock() >= until:
                return False
            yield Sleep(_LOOK)
        return True

    def run(self, step: "Step | RecordedStep") -> object:
        """Make a step, or return its recorded result."""
        if isinstance(step, RecordedStep):
            return drive(self.recorded(step), self._claim.store)
        outer = INNERMOST.get()
        try:
            self.notes.check_room(step.name)
            self._enter(step.name)
            if step.ask is not None:
                earlier = self._earlier(step, step.ask())
                if earlier is not None:
                    note = self.notes.success(step.name, step.codec, earlier.result, 0.0)
                    self.notes.tell(self.notes.write(note, earlier.result))
                    return earlier.result
            self._check_begin(step.name)
            if step.parks:
                self.notes.write(self.notes.beginning(step.name))
                self.check_lease(step.name)  # the write can take long
            call = Call(step.call)
            with self._claim.observers.begin_step(step.name) or _NO_SPAN:
                failure = run_under(None, call, partial(self._leave, step, self._claim.clock()))
            if failure is not None:
                raise failure
            return call[RETURNED]
        finally:
            INNERMOST.set(outer)
            self.notes.leave(step.name)

    async def run_async(self, step: "Step | RecordedStep") -> object:
        """Like :meth:`run`, for a coroutine; awaits what can be awaited."""
        if isinstance(step, RecordedStep):
            return await drive_async(self.recorded(step), self._claim.store)
        outer = INNERMOST.get()
        try:
            self.notes.check_room(step.name)
            self._enter(step.name)
            if step.ask is not None:
                answer = step.ask()
                earlier = self._earlier(step, await answer if hasattr(answer, "__await__") else answer)
                if earlier is not None:
                    note = self.notes.success(step.name, step.codec, earlier.result, 0.0)
                    self.notes.tell(await self.notes.write_async(note, earlier.result))
                    return earlier.result
            self._check_begin(step.name)
            if step.parks:
                await self.notes.write_async(self.notes.beginning(step.name))
                self.check_lease(step.name)  # as above
            call = Call(step.call)
            with self._claim.observers.begin_step(step.name) or _NO_SPAN:
                failure = await run_under_async(None, call, partial(self._leave_async, step, self._claim.clock()))
            if failure is not None:
                raise failure
            return call[RETURNED]
        finally:
            INNERMOST.set(outer)
            self.notes.leave(step.name)

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
    ) -> "Step | RecordedStep":
        """Check a step before anything runs. Return it, or what is recorded of it.

        Raises:
            TypeError, ValueError: an argument is wrong, or the name was used before in this attempt.
            Parked: an earlier attempt left it so that it must not run again. The key is parked when the handler ends.
            LeaseLost, StepNotRecorded: this attempt must not begin a step.
            OncewardError: the record has no room for it.
        """
        handler, codec = _handler_and_codec(function)
        if handler.is_async and not awaited:
            raise TypeError(f"{function!r} is a coroutine function: write await claim.step_async(...)")
        _check_options(on_lapse, not_made)
        text, entry = self.begin(name, parks=on_lapse == "park")
        self.use(text)
        if entry is not None and entry.done:
            return RecordedStep(entry, codec)
        call, ask = partial(function, *args, **kwargs), None
        if callable(on_lapse) and (self.follows or entry is not None):
            ask = partial(on_lapse, self._claim.key(name), *args, **kwargs)
        return Step(text, call, codec, ask, on_lapse == "park", not_made)

    def recorded(self, step: RecordedStep) -> Steps[object]:
        """Return the recorded result of a step, and tell observers."""
        claim, entry = self._claim, step.entry
        try:
            text = yield from fetch(claim, entry)
            record = claim.record._replace(result=text, error=entry.why)
            value = Replays(claim.policy, claim.clock, step.codec).recorded(record)
        except StoreError as error:
            self._stopped, self._comes_back = str(error), True
            raise
        except ResultUnavailable as error:
            why = f"its step {entry.name!r} was made, and its result cannot be read: {error.reason}"
            if not getattr(error.__cause__, "comes_back", False):
                raise self._stop(why) from error
            self._stopped, self._comes_back = f"{claim.record.key}: {why}. A later attempt reads it again", True
            raise StoreError(self._stopped, transient=True) from error
        self.notes.tell(Note(entry.name, entry), again=True)
        return value

    def _earlier(self, step: Step, answer: object) -> Made | None:
        if isinstance(answer, Made):
            return answer
        if answer is NOT_MADE:
            return None
        raise TypeError(
            f"on_lapse of the step {step.name!r} returned {answer!r}: return onceward.Made(result) or onceward.NOT_MADE"
        )

    def _leave(self, step: Step, since: float, _: None, call: Call) -> BaseException | None:
        """Record how the function ended. After an interrupt, it is called again."""
        note = self._noted(step, call, since)
        return self._over(call, note and self.notes.write(note, call.get(RETURNED)))

    async def _leave_async(self, step: Step, since: float, _: None, call: Call) -> BaseException | None:
        """Like :meth:`_leave`, for a coroutine."""
        note = self._noted(step, call, since)
        return self._over(call, note and await self.notes.write_async(note, call.get(RETURNED)))

    def _noted(self, step: Step, call: Call, since: float) -> Note | None:
        """Return what to record of a function that has ended, if anything: the same each time."""
        failure = called.failure(call)
        if _NOTE not in call:
            note = None
            if failure is None:
                note = self.notes.success(step.name, step.codec, call[RETURNED], self._claim.clock() - since)
            elif self._ends_unmade(step, failure):
                note = Note(step.name, None)
            call[_NOTE] = note
        return cast("Note | None", call[_NOTE])

    def _over(self, call: Call, note: Note | None) -> BaseException | None:
        call[OVER] = True
        if note is not None and note.entry is not None:
            self.notes.tell(note)
        return called.failure(call)

    def _ends_unmade(self, step: Step, failure: BaseException) -> bool:
        """Note what a failure means. Return whether the note of a step that parks must be struck out."""
        if not called.is_failure(failure):
            self.is_cut_short = True
            return False
        if not step.parks:
            return False
        if isinstance(failure, (*step.not_made, called.NotBegun)):
            return True
        if isinstance(failure, self._claim.policy.final):  # an outcome, so nothing is open
            return False
        self.parks = f"its step {step.name!r} raised, and may have been made: {describe(failure)}"
        return False


def _check_options(on_lapse: object, not_made: object) -> None:
    """Raise TypeError or ValueError if the options of a step are wrong."""
    if not callable(on_lapse) and (not isinstance(on_lapse, str) or on_lapse not in {"retry", "park"}):
        raise TypeError(f'on_lapse={on_lapse!r}: give "retry", "park", or a function that finds out what was made')
    check_exceptions("not_made", not_made)
    if not_made and on_lapse != "park":
        raise ValueError('not_made= is for steps with on_lapse="park"')


def _handler_and_codec(function: Callable[..., object]) -> tuple[Handler, Codec]:
    """Return what is known of a step's function, and how its results are stored; raises TypeError if they cannot be."""
    if not callable(function):
        raise TypeError(f"{function!r} is not a function: write claim.step(name, function, *arguments)")
    one = getattr(function, "__func__", function)
    try:
        both = _KNOWN.get(one)
        if both is None:
            both = _KNOWN[one] = _read(function)
    except TypeError:  # it takes no weak reference, or no hash, or its results cannot be stored
        both = _read(function)
    return both


def _read(function: Callable[..., object]) -> tuple[Handler, Codec]:
    handler = handler_of(function)
    return handler, Codec(handler.annotation)
