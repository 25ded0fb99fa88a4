"""What every web face uses: the rules, and a guard that records answers."""

import os
from collections.abc import Callable

from onceward.errors import LeaseLost, OncewardError, ResultNotRecorded, ResultUnavailable, StoreError
from onceward.http.answer import Answer, Recorded, bodiless, fault_of, recorded
from onceward.http.route import KeyedRequest, WebOptions
from onceward.http.rules import Rules, rules_of
from onceward.keys.ledger_keys import scoped_key
from onceward.observe.logs import logger
from onceward.once import Once, check_once
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec
from onceward.results.outcomes import GivenBack


class Unrecorded(OncewardError):
    """The handler's answer is not recorded, so its key is given back (or parked, if ``on_error`` says so)."""


class Exchange:
    """What a handler's answer means under a guard."""

    began: bool | None = None  # whether the endpoint itself began, as far as the face knows; None if unknown

    def __init__(self, guarded: "Guarded") -> None:
        self._rules = guarded.rules
        self._most = guarded.guard.policy.max_result

    def outcome(self, answer: Answer, cut: str | None = None) -> Recorded | Exception:
        """Take in the handler's answer. Return what the guard must record, or the error to fail with.

        Args:
            answer: the answer.
            cut: why the body cannot be replayed; None if it is complete.

        Returns:
            Unrecorded if the rules do not record this answer; GivenBack if the endpoint has not begun.
        """
        status, began = answer.status, self.began
        if self._rules.records(status, began):
            return self._rules.keep(answer, self._most) if cut is None else bodiless(status, answer.headers, cut)
        if self._rules.is_failure(status, began):
            return Unrecorded(f"answered with status {status}")
        return GivenBack(f"refused with status {status}")

    def outcome_of_error(self, error: Exception) -> Recorded | Exception:
        """Take in the handler's exception. Return what the guard must record, or the error to fail with."""
        if self.began is False:
            return GivenBack("the endpoint has not begun")
        if self._rules.records(500, self.began):
            return self._rules.keep(self._rules.failure(), self._most)
        return error


class Guarded:
    """Rules and their guard, made once for an application.

    Args:
        once, rules, options: as for a face, such as :class:`onceward.web.WsgiIdempotency`.
        example: how a user gives the face its Once, for errors.
        prepare: checks the rules, such as :func:`onceward.http.rules.endpoint_rules`.

    Attributes:
        within: seconds an answer waits for its record; None waits until it is written.
        guard: the guard. Pass its value for a duplicate to :meth:`recorded`.
        methods: all methods of the routes; a cheap first check.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        once: Once,
        rules: Rules | None,
        options: WebOptions,
        example: str,
        *,
        prepare: Callable[[Rules | None], Rules] = rules_of,
    ) -> None:
        check_once(once, example)
        name, wait = options.pop("name", None), options.pop("wait", None)
        if wait is not None:
            options["on_busy"] = wait
        self.rules = prepare(rules)
        # Lambda freezes a process after its answer, so nothing can run behind the answer.
        self.within = None if "AWS_LAMBDA_FUNCTION_NAME" in os.environ else self.rules.record_within
        self.methods = frozenset[str]().union(*(route.methods for route in self.rules.routes))
        self.guard = once.guards.for_keys(
            name, options, default="", no_skip="each request is answered", codec=AnswerCodec()
        )
        if not self.guard.name:
            raise TypeError(
                "name= is missing: give the namespace of the keys, as in name='shop', and another one to each service. Two "
                "services with one name on one ledger would give each other's answers"
            )

    def key(self, ask: KeyedRequest) -> str:
        """Return the ledger's key of a request."""
        return scoped_key(self.guard.name, ask.key)

    def refusal(self, error: Exception, route: str, *, done: bool = False) -> Answer | None:
        """Return what the client gets if the guard raised ``error``; None is the handler's own answer, if that is ``done``.

        Raises:
            Exception: ``error``, if it is recorded as ``final``, or a mistake in the program.
        """
        if not isinstance(error, OncewardError):
            raise error
        if isinstance(error, LeaseLost | ResultNotRecorded | StoreError):
            tell(route, error)
        if done and isinstance(error, ResultNotRecorded):
            return None  # it has run: a client that gets the answer need not send it again
        answer = self.rules.refusal(error)
        if answer is None:
            raise error
        return answer

    def recorded(self, key: str, value: object) -> Recorded:
        """Return the answer that the ledger holds.

        Raises:
            ResultUnavailable: the handler completed its claim itself, without an :class:`Answer`.
        """
        if isinstance(value, Recorded):
            return value
        raise ResultUnavailable(key, "its handler completed the claim with a value that is not an onceward.web.Answer")


def tell(what: str, error: BaseException) -> None:
    """Log an error that concerns ``what``. What is away needs no traceback for each request."""
    logger().error(
        "%s: %s: %s",
        what,
        type(error).__name__,
        error,
        exc_info=None if isinstance(error, OncewardError | OSError) else error,
    )


class AnswerCodec(Codec):
    """Stores answers, also those with which handlers complete their claims themselves."""

    def __init__(self) -> None:
        super().__init__(Recorded)

    def encode(self, value: object) -> str:
        """As :meth:`Codec.encode`, also for an :class:`Answer`. NotReplayable also says what no server could send."""
        if isinstance(value, Answer):
            if (fault := fault_of(value)) is not None:
                raise NotReplayable(fault)
            value = recorded(value)
        if isinstance(value, Recorded):
            try:
                return self._encoder.encode(
                    value
                ).decode()  # each field comes back as it is, so no trial read is needed
            except (TypeError, UnicodeEncodeError):  # a text of a class of its own, or half of a surrogate pair
                pass
        return super().encode(value)
