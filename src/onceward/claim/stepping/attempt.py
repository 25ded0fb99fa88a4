"""Which steps an attempt may begin, why it may not go on, and what ``on_lapse`` can answer."""

import threading
from contextvars import ContextVar
from typing import Final, NamedTuple

from onceward.claim.called import is_within
from onceward.claim.lease import Lease
from onceward.claim.replays import parked_error
from onceward.claim.stepping.notes import StepNotes
from onceward.errors import LeaseLost, OncewardError, Parked, StoreError
from onceward.keys.ledger_keys import step_name
from onceward.results.step_entries import Doubt, Entry, entries_of


class Made(NamedTuple):
    """An earlier attempt has made the step, with this result."""

    result: object = None


class NotMade:
    """The type of :data:`NOT_MADE`."""

    def __repr__(self) -> str:
        return "onceward.NOT_MADE"


NOT_MADE: Final = NotMade()  # no earlier attempt has made the step, so it runs


class InStep(NamedTuple):
    """That the code in this context is in a step."""

    chain: "StepsOfAttempt"
    name: str
    outer: "InStep | None"  # a handler in a step can have steps


INNERMOST: ContextVar[InStep | None] = ContextVar("onceward_step", default=None)


class StepsOfAttempt:
    """The steps of one attempt, and what stops it.

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

    def __init__(self, claim: Lease) -> None:
        self._claim = claim
        self.notes = StepNotes(claim)
        self.used: dict[str, object] = {}
        self.follows = claim.attempt > 1 or claim.goes_on or claim.record.steps is not None
        self._threads = threading.local()  # marks those that make steps and are in none
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
                f"{key}: a message was sent within a step. A later attempt skips that step, so the message would be "
                "lost. Send it after the step"
            )
        if self.notes.running and not self._is_handlers():
            raise OncewardError(
                f"{key}: a message was sent while a step runs, from a thread without the handler's context, so it may be within "
                "that step. Send it after the step, or start the thread with contextvars.copy_context().run"
            )

    def check_none_runs(self, doing: str) -> None:
        """Raise OncewardError if another step still runs: a later attempt would make it a second time."""
        if self.notes.running and self.within() is None:
            name = next(iter(self.notes.running))
            raise OncewardError(
                f"{self._claim.record.key}: cannot {doing} while its step {name!r} runs, because a later attempt would make that "
                "step again. Wait for the step first"
            )

    def within(self) -> str | None:
        """Return the name of the step that the caller is in."""
        if self.transacts is not None:
            return self.transacts
        inner = INNERMOST.get()
        while inner is not None and inner.chain is not self:
            inner = inner.outer
        return None if inner is None else inner.name  # also None in a thread without the step's context

    def _enter(self, name: str) -> None:
        """Note that this context is in the step ``name``. Set ``INNERMOST`` to what it was when you leave it."""
        if self.within() is None:
            self._threads.is_handlers = True
        INNERMOST.set(InStep(self, name, INNERMOST.get()))

    def _is_handlers(self) -> bool:
        """Return whether a caller that is in no known step is surely the handler's. In a bare thread nobody can tell."""
        if self._claim.thread == threading.get_ident() or getattr(self._threads, "is_handlers", False):
            return True
        return is_within(self._claim)

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

    def _stop(self, why: str) -> Parked:
        """Note that this attempt must not go on; return the error that says why."""
        self._stopped, self._comes_back, self.parks = why, False, why
        return parked_error(self._claim.record, why, self._doubt)
