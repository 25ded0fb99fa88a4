"""One request under a guard: its handler's answer, and what its client gets. No I/O.

A face runs it like this, and awaits the same in coroutines::

    exchange = Exchange(rules, asked, most)

    def handler():                                   # what the guard calls, once for the key
        try:
            response = application(...)
        except Exception as error:
            ... exchange.raised(error)               # what to record instead, or the error to raise
        return exchange.answered(Answer(...))        # or raises Unrecorded, which gives the key back

    try:
        answer = exchange.repeated(once.run(asked.key, handler))
    except Exception as error:
        answer = exchange.refused(error)             # or raises it
    send(response if answer is None else answer)
"""

from onceward.errors import LeaseLost, OncewardError, ResultNotRecorded, StoreError
from onceward.http.answer import Answer, Recorded, bodiless
from onceward.http.coding import suited
from onceward.http.rules import Rules
from onceward.http.verdict import KeyedRequest
from onceward.results.outcomes import GivenBack


class Unrecorded(OncewardError):
    """The handler's answer is not recorded, so its key is given back (or parked, if ``on_error`` says so)."""


class Exchange:
    """One request under a guard. ``most`` is how many bytes of an answer the ledger takes (``Policy.max_result``)."""

    _done = False
    _has_raised = False  # whether the guard now raises the handler's own exception

    def __init__(self, rules: Rules, ask: KeyedRequest, most: int) -> None:
        self._rules = rules
        self._route = ask.route
        self._lines = ask.lines
        self._most = most

    def outcome(self, answer: Answer, began: bool | None = None, cut: str | None = None) -> Recorded | Exception:
        """Take in the handler's answer. Return what the guard must record, or the error to fail with.

        Args:
            answer: the answer.
            began: whether the endpoint itself began; None if unknown.
            cut: why the body cannot be replayed; None if it is complete.

        Returns:
            Unrecorded if the rules do not record this answer; GivenBack if the endpoint has not begun.
        """
        self._done = True
        status = answer.status
        if self._rules.records(status, began):
            return self._rules.keep(answer, self._most) if cut is None else bodiless(status, answer.headers, cut)
        if self._rules.failed(status, began):
            return Unrecorded(f"answered with status {status}")
        return GivenBack(f"refused with status {status}")

    def answered(self, answer: Answer) -> Recorded:
        """As :meth:`outcome`, but raise the error."""
        outcome = self.outcome(answer)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def raised(self, error: Exception, began: bool | None = None) -> Recorded | Exception:
        """Take in the handler's exception. Return what the guard must record, or the error to fail with."""
        if began is False:
            return GivenBack("the endpoint has not begun")
        if self._rules.records(500, began):
            return self._rules.keep(self._rules.failure(), self._most)
        self._has_raised = True
        return error

    def ended(self, record: Recorded) -> Recorded:
        """Note that ``record`` stands for the handler's own answer, which its client gets."""
        self._done = True
        return record

    def repeated(self, record: Recorded) -> Answer | None:
        """Return what the client gets if the guard returned ``record``; None is the handler's own answer."""
        return None if self._done else suited(self._rules.repeat(record), self._lines("accept-encoding"))

    def refused(self, error: Exception) -> Answer | None:
        """Return what the client gets if the guard raised ``error``; None is the handler's own answer.

        Raises:
            Exception: ``error``, if it is the handler's own (new, or recorded as ``final``), or a mistake in the program.
        """
        if self._has_raised or not isinstance(error, OncewardError):
            raise error
        if self._done and isinstance(error, Unrecorded | GivenBack):
            return None
        if isinstance(error, LeaseLost | ResultNotRecorded | StoreError):
            from onceward.http.trouble import tell

            tell(self._route, error)
        if self._done and isinstance(error, ResultNotRecorded):
            return None  # it has run: a client that gets the answer need not send it again
        answer = self._rules.refusal(error)
        if answer is None:
            raise error
        return answer
