"""One request under a guard: what its handler answered, and what its client gets. For the shells; no I/O.

A shell runs it so, and its coroutine twin awaits the same::

    exchange = Exchange(rules, asked, most)

    def handler():                                   # what the guard calls, once for the key
        exchange.begun()
        with exchange.handling():
            response = application(...)
        return exchange.answered(Answer(...))        # or raises Unrecorded, which gives the key back

    try:
        answer = exchange.repeated(once.run(asked.key, handler))
    except Exception as error:
        answer = exchange.refused(error)             # or raises it
    send(response if answer is None else answer)
"""

from collections.abc import Iterable
from types import TracebackType

from onceward.errors import LeaseLost, OncewardError, ResultNotRecorded, StoreError
from onceward.http.answer import Answer, Recorded, bodiless
from onceward.http.rules import Rules
from onceward.http.verdict import KeyedRequest
from onceward.results.outcomes import GivenBack


class Unrecorded(OncewardError):
    """The handler's answer is no outcome to record, so its key is given back (or parked, as ``on_error`` says)."""


class Exchange:
    """One request under a guard.

    Args:
        rules: how it is answered.
        ask: what it asks for.
        most: how many bytes of an answer the ledger takes (``Policy.max_result``).
    """

    _done = False
    _raised: BaseException | None = None

    def __init__(self, rules: Rules, ask: KeyedRequest, most: int) -> None:
        self._rules = rules
        self._route = ask.route
        self._most = most

    def begun(self) -> None:
        """Say that the key is claimed, and the handler about to be called."""
        self._rules.tell("claimed", self._route)

    def handling(self) -> "Handling":
        """Return a context for the call of the handler, whose own errors are never taken for the guard's."""
        return Handling(self)

    def answered(self, answer: Answer, began: bool | None = None) -> Recorded:
        """Take in the handler's answer, and return what the guard is to record.

        Args:
            answer: the answer.
            began: whether the endpoint itself began; None when nobody can tell.

        Raises:
            Unrecorded: it is not one that is recorded.
            GivenBack: the endpoint has not begun.
        """
        self._check(answer.status, began)
        return self._rules.keep(answer, self._most)

    def headed(self, status: int, headers: Iterable[tuple[str, str]], why: str, began: bool | None = None) -> Recorded:
        """Take in an answer whose body is not to be replayed, and return what the guard is to record.

        Args:
            status: its code.
            headers: one pair for each header line.
            why: says to later requests why the answer cannot be repeated.
            began: as for :meth:`answered`.

        Raises:
            Unrecorded, GivenBack: as there.
        """
        self._check(status, began)
        return self.ended(bodiless(status, headers, why))

    def outcome(self, answer: Answer, began: bool | None, cut: str | None = None) -> Recorded | Exception:
        """Take in the handler's answer, and return what the guard is to record, or what it is to fail with.

        Args:
            answer: the answer.
            began: as for :meth:`answered`.
            cut: why its body cannot be replayed; None when it is all there.
        """
        try:
            if cut is None:
                return self.answered(answer, began)
            return self.headed(answer.status, answer.headers, cut, began)
        except (Unrecorded, GivenBack) as error:
            return error

    def raised(self, error: Exception, began: bool | None = None) -> Recorded | Exception:
        """Take in what the handler has raised; return what the guard is to record, or what it is to fail with."""
        if began is False:
            return GivenBack("the endpoint has not begun")
        if self._rules.records(500, began):
            return self._rules.keep(self._rules.failure(), self._most)
        return error

    def _check(self, status: int, began: bool | None) -> None:
        self._done = True
        if self._rules.records(status, began):
            return
        if self._rules.failed(status, began):
            raise Unrecorded(f"answered with status {status}")
        raise GivenBack(f"refused with status {status}")

    def ended(self, record: Recorded) -> Recorded:
        """Take in that the handler has sent an answer that is recorded as ``record``; for answers that are not held whole."""
        self._done = True
        return record

    def repeated(self, record: Recorded) -> Answer | None:
        """Return what the client gets when the guard has returned ``record``; None is the handler's own answer."""
        return None if self._done else self._rules.repeat(record, self._route)

    def refused(self, error: Exception) -> Answer | None:
        """Return what the client gets when the guard has raised ``error``; None is the handler's own answer.

        Raises:
            Exception: ``error``, when it is the handler's own, recorded (``final``) or new, or a mistake in the program.
        """
        if error is self._raised or not isinstance(error, OncewardError):
            raise error
        if self._done and isinstance(error, Unrecorded | GivenBack):
            return None
        if isinstance(error, LeaseLost | ResultNotRecorded | StoreError):
            from onceward.http.trouble import tell

            tell(self._route, error)
        if self._done and isinstance(error, ResultNotRecorded):
            return None  # it was carried out: who learns of that has no reason to send it again
        answer = self._rules.refusal(error, self._route)
        if answer is None:
            raise error
        return answer


class Handling:
    """What :meth:`Exchange.handling` returns."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange._raised = error  # noqa: SLF001 - the two are one
