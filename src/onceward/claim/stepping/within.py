"""Whether code is in a step of a claim, or in its handler outside of all steps."""

import threading
from contextvars import ContextVar
from typing import NamedTuple

from onceward.claim.lease import CURRENT, Lease


class InStep(NamedTuple):
    """That the code in this context is in a step."""

    place: "CallerPlace"
    name: str
    outer: "InStep | None"  # a handler in a step can have steps


INNERMOST: ContextVar[InStep | None] = ContextVar("onceward_step", default=None)


class CallerPlace:
    """Where the callers of one claim are."""

    def __init__(self, claim: Lease) -> None:
        self._claim = claim
        self._threads = threading.local()  # marks those that make steps and are in none

    def enter(self, name: str) -> None:
        """Note that this context is in the step ``name``. Set ``INNERMOST`` to what it was when you leave it."""
        if self.step() is None:
            self._threads.is_handlers = True
        INNERMOST.set(InStep(self, name, INNERMOST.get()))

    def step(self) -> str | None:
        """Return the name of the step that the caller is in; None if it is in none, or in a thread without its context."""
        inner = INNERMOST.get()
        while inner is not None and inner.place is not self:
            inner = inner.outer
        return None if inner is None else inner.name

    def is_handlers(self) -> bool:
        """Return whether a caller that is in no known step is surely the handler's. In a bare thread nobody can tell."""
        if self._claim.thread == threading.get_ident() or getattr(self._threads, "is_handlers", False):
            return True
        outer = CURRENT.get()
        while outer is not None and outer is not self._claim:
            outer = outer.outer
        return outer is not None
