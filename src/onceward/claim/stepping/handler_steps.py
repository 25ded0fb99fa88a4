"""Runs the steps of one claim. Each is made once, recorded, and answered from the record on later attempts.

User code runs between the writes, in the care of ``running.run_under``: if an interrupt comes right after a step's function, its
result is recorded all the same.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.claim import called
from onceward.claim.called import OVER, RETURNED, Call
from onceward.claim.claim import OnLapse
from onceward.claim.replays import Replays, parked_error
from onceward.claim.running import run_under, run_under_async
from onceward.claim.stepping.answers import NOT_MADE, Made
from onceward.claim.stepping.functions import check_options, known
from onceward.claim.stepping.kept import fetch
from onceward.claim.stepping.notes import StepNotes
from onceward.claim.stepping.within import INNERMOST, CallerPlace
from onceward.claim.stepping.writer import Note
from onceward.core.drivers import Sleep, Steps, drive, drive_async
from onceward.errors import LeaseLost, OncewardError, Parked, ResultUnavailable, StoreError
from onceward.keys.ledger_keys import step_name
from onceward.results.codec import Codec
from onceward.results.doubt import Doubt
from onceward.results.outcomes import describe
from onceward.results.step_entries import Entry, entries_of

if TYPE_CHECKING:
    from onceward.claim.lease import Lease

_LOOK: Final = 0.01  # seconds between two looks for steps that still run
_NOTE: Final = "note"  # a call's place for what is recorded of it, so that it is made once
_NO_SPAN: Final = nullcontext()


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


class HandlerSteps:
    """The steps of one claim.

    Attributes:
        notes: what is noted of them.
        used: the names of the steps of this attempt.
        is_cut_short: whether an interrupt ended a step's function, so that work that it started may still go on.
        is_over: whether the handler has failed, so that no task or thread that it left may begin a step.
        parks: why the key is parked if the handler raises; None if it is not.
        follows: whether an earlier attempt may have begun a step of which nothing is recorded.
        transacts: the step whose transaction is open.
    """

    is_cut_short = False
    is_over = False
    transacts: str | None = None

    def __init__(self, claim: "Lease") -> None:
        self._claim = claim
        self.notes = StepNotes(claim)
        self.used: dict[str, object] = {}
        self.follows = claim.attempt > 1 or claim.record.steps is not None
        self._place = CallerPlace(claim)
        self._stopped: str | None = None
        self._comes_back = False  # whether what stopped this attempt can pass
        self._doubt: Doubt | None = None
        self.parks: str | None = None

    def refusal(self) -> Parked | StoreError | None:
        """Return why this attempt cannot succeed, whatever its handler returns. After a StoreError, the next one can."""
        if self._stopped is None:
            return None
        if self._comes_back:
            return StoreError(self._stopped, transient=True)
        return parked_error(self._claim.record, self._stopped, self._doubt)

    def check_outside(self) -> None:
        """Raise OncewardError within a step: a later attempt would not enter it, and would not send its message."""
        key = self._claim.record.key
        if self.within() is not None:
            raise OncewardError(
                f"{key}: a message was sent within a step, which a later attempt does not enter, so the message would be lost. "
                "Send it after the step"
            )
        if self.notes.room.running and not self._place.is_handlers():
            raise OncewardError(
                f"{key}: a message was sent while a step runs, from a thread without the handler's context, so it may be within "
                "that step. Send it after the step, or start the thread with contextvars.copy_context().run"
            )

    def check_none_runs(self, doing: str) -> None:
        """Raise OncewardError if another step still runs: a later attempt would make it a second time."""
        if self.notes.room.running and self.within() is None:
            name = next(iter(self.notes.room.running))
            raise OncewardError(
                f"{self._claim.record.key}: cannot {doing} while its step {name!r} runs, because a later attempt would make that "
                "step again. Wait for the step first"
            )

    def within(self) -> str | None:
        """Return the name of the step that the caller is in."""
        if self.transacts is not None:
            return self.transacts
        return self._place.step()

    def ended(self, limit: Callable[[float], float] = float) -> Steps[bool]:
        """Wait for steps that still run beside a handler that failed: nobody may repeat them meanwhile.

        Args:
            limit: returns an earlier time for the end of the wait.

        Returns:
            False if one still runs after a whole lease.
        """
        self.is_over = True
        until = limit(self._claim.clock() + self._claim.policy.lease)
        while self.notes.room.running and not self._claim.lost:
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
            self._place.enter(step.name)
            if step.ask is not None:
                made = self._answered(step, step.ask())
                if made is not None:
                    note = self.notes.made(step.name, step.codec, made.result, 0.0)
                    self.notes.tell(self.notes.write(note, made.result))
                    return made.result
            self._check_begin(step.name)
            if step.parks:
                self.notes.write(self.notes.begun(step.name))
                self.check_lease(step.name)  # the write can take long
            call = Call(step.call)
            with self._claim.observers.begin_step(step.name) or _NO_SPAN:
                failure = run_under(None, call, partial(self._leave, step, self._claim.clock()))
            if failure is not None:
                raise failure
            return call[RETURNED]
        finally:
            INNERMOST.set(outer)
            self.notes.room.leave(step.name)

    async def run_async(self, step: "Step | RecordedStep") -> object:
        """Like :meth:`run`, for a coroutine; awaits what can be awaited."""
        if isinstance(step, RecordedStep):
            return await drive_async(self.recorded(step), self._claim.store)
        outer = INNERMOST.get()
        try:
            self.notes.check_room(step.name)
            self._place.enter(step.name)
            if step.ask is not None:
                answer = step.ask()
                made = self._answered(step, await answer if hasattr(answer, "__await__") else answer)
                if made is not None:
                    note = self.notes.made(step.name, step.codec, made.result, 0.0)
                    self.notes.tell(await self.notes.write_async(note, made.result))
                    return made.result
            self._check_begin(step.name)
            if step.parks:
                await self.notes.write_async(self.notes.begun(step.name))
                self.check_lease(step.name)  # as above
            call = Call(step.call)
            with self._claim.observers.begin_step(step.name) or _NO_SPAN:
                failure = await run_under_async(None, call, partial(self._leave_async, step, self._claim.clock()))
            if failure is not None:
                raise failure
            return call[RETURNED]
        finally:
            INNERMOST.set(outer)
            self.notes.room.leave(step.name)

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
    ) -> "Step | RecordedStep":
        """Check a step before anything runs. Return it, or what is recorded of it.

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
        text, entry = self.begin(name, parks=on_lapse == "park")
        self.use(text)
        if entry is not None and entry.done:
            return RecordedStep(entry, codec)
        call, ask = partial(function, *args, **kwargs), None
        if callable(on_lapse) and (self.follows or entry is not None):
            ask = partial(on_lapse, self._claim.key(name), *args, **kwargs)
        return Step(text, call, codec, ask, on_lapse == "park", not_made)

    def begin(self, name: object, *, parks: bool) -> tuple[str, Entry | None]:
        """Check that this attempt can begin a step. Return its name in the record, and what is recorded of it.

        Raises the errors of :meth:`step`. ``parks`` is whether a step that an attempt ended in must not run again.
        """
        text = step_name(name)
        self._claim.check_usable()
        if self.notes.failed is not None:
            raise self.notes.failed
        if (refusal := self.refusal()) is not None:
            raise refusal
        if text in self.used:
            raise self._two_of(text)
        self._check_begin(text)
        entry = self._entries().get(text)
        if entry is not None and not entry.done and parks:
            self._doubt = Doubt(text)
            raise self._stop(f"attempt {entry.attempt} ended in its step {text!r}, which may have been made")
        return text, entry

    def use(self, name: str, by: object = None) -> None:
        """Note that this attempt has a step of this name; raises ValueError if another thread was faster.

        ``by`` is who may take that back.
        """
        mine = object() if by is None else by
        if self.used.setdefault(name, mine) is not mine:
            raise self._two_of(name)

    def unuse(self, name: str, by: object) -> None:
        """Take back what ``by`` has noted with :meth:`use`, if it has: its step was rolled back, and can be made again."""
        if self.used.get(name) is by:
            del self.used[name]

    def _two_of(self, name: str) -> ValueError:
        return ValueError(
            f"{self._claim.record.key}: two steps of this attempt have the name {name!r}. Give each its own, in a loop "
            'for example ("mail", n)'
        )

    def check_lease(self, name: str) -> None:
        """Raise LeaseLost or ForkedClaim if this process must not begin a step any more."""
        self._claim.check_own()
        if self._claim.lost:
            raise LeaseLost(self._claim.record.key, f"begin its step {name!r}")

    def _check_begin(self, name: str) -> None:
        """Raise OncewardError too if the handler has failed, or the end of its claim is being recorded.

        A step that has room is waited for, so this comes after that.
        """
        self.check_lease(name)
        if self.is_over or self._claim.ending:
            raise OncewardError(
                f"{self._claim.record.key}: its handler has ended, so its step {name!r} cannot begin any more"
            )

    def _entries(self) -> dict[str, Entry]:
        try:
            return entries_of(self._claim.record.steps)
        except ValueError as error:
            raise self._stop(f"its steps cannot be read: {error}") from error

    def recorded(self, found: RecordedStep) -> Steps[object]:
        """Return the recorded result of a step, and tell observers."""
        claim, entry = self._claim, found.entry
        try:
            text = yield from fetch(claim, entry)
            record = claim.record._replace(result=text, error=entry.why)
            value = Replays(claim.policy, claim.clock, found.codec).recorded(record)
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

    def _stop(self, why: str) -> Parked:
        """Note that this attempt must not go on; return the error that says why."""
        self._stopped, self._comes_back, self.parks = why, False, why
        return parked_error(self._claim.record, why, self._doubt)

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
        failure, note = called.failure(call), None
        if failure is None:
            note = self.notes.write(self._noted(step, call, since), call[RETURNED])
        elif self._ends_unmade(step, failure):
            self.notes.write(Note(step.name, None))
        call[OVER] = True
        if note is not None:
            self.notes.tell(note)
        return failure

    async def _leave_async(self, step: Step, since: float, _: None, call: Call) -> BaseException | None:
        """Like :meth:`_leave`, for a coroutine."""
        failure, note = called.failure(call), None
        if failure is None:
            note = await self.notes.write_async(self._noted(step, call, since), call[RETURNED])
        elif self._ends_unmade(step, failure):
            await self.notes.write_async(Note(step.name, None))
        call[OVER] = True
        if note is not None:
            self.notes.tell(note)
        return failure

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

    def _noted(self, step: Step, call: Call, since: float) -> Note:
        """Return what to record of a step that was made: the same each time."""
        noted = call.get(_NOTE)
        if not isinstance(noted, Note):
            call[_NOTE] = noted = self.notes.made(step.name, step.codec, call[RETURNED], self._claim.clock() - since)
        return noted
