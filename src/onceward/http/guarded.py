"""What every web face uses: the rules, and a guard that records answers."""

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

import msgspec

from onceward.core.policy import Options
from onceward.errors import ResultUnavailable
from onceward.http.answer import Answer, Recorded, recorded
from onceward.http.coverage import Coverage
from onceward.http.exchange import Exchange
from onceward.http.options import with_wait
from onceward.http.rules import Rules, rules_of
from onceward.http.verdict import KeyedRequest
from onceward.keys.ledger_keys import scoped_key
from onceward.once import check_once
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec

if TYPE_CHECKING:
    from onceward.once import Once


_NAME: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+").fullmatch  # a token of RFC 9110, section 5.6.2
# RFC 9110, section 5.5
_VALUE: Final = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?").fullmatch


class Guarded:
    """Rules and their guard, made once for an application.

    Args:
        once, rules, name, wait, options: as for a face, such as :class:`onceward.web.WsgiIdempotency`.
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
        once: "Once",
        rules: Rules | None,
        name: str | None,
        wait: float | None,
        options: Options,
        example: str,
        *,
        prepare: Callable[[Rules | None], Rules] = rules_of,
    ) -> None:
        check_once(once, example)
        options = with_wait(options, wait)
        self.rules = prepare(rules)
        # Lambda freezes a process after its answer, so nothing can run behind the answer.
        self.within = None if "AWS_LAMBDA_FUNCTION_NAME" in os.environ else self.rules.record_within
        self.coverage = Coverage(self.rules)
        self.methods = frozenset[str]().union(*(route.methods for route in self.rules.routes))
        self.guard = once.guards.for_keys(
            name, options, default="", no_skip="each request is answered", codec=AnswerCodec()
        )
        if not self.guard.name:
            raise TypeError(
                "name= is missing: give the namespace of the keys, as in name='shop', and another one to each service. Two "
                "services with one name on one ledger would give each other's answers"
            )

    def begin(self, ask: KeyedRequest) -> tuple[str, Exchange]:
        """Return the ledger's key and the exchange of a request."""
        most = self.guard.policy.max_result
        assert most is not None  # the guard has asked the store
        return scoped_key(self.guard.name, ask.key), Exchange(self.rules, ask, most)

    def recorded(self, key: str, value: object) -> Recorded:
        """Return the answer that the ledger holds.

        Raises:
            ResultUnavailable: the handler completed its claim itself, without an :class:`Answer`.
        """
        if isinstance(value, Recorded):
            return value
        raise ResultUnavailable(key, "its handler completed the claim with a value that is no onceward.web.Answer")


class AnswerCodec(Codec):
    """Stores answers, also those with which handlers complete their claims themselves."""

    def __init__(self) -> None:
        super().__init__(Recorded)

    def encode(self, value: object) -> str:
        """As :meth:`Codec.encode`, also for an :class:`Answer`. NotReplayable also says what no server could send."""
        if isinstance(value, Answer):
            _check_sendable(value)
            value = recorded(value)
        if type(value) is Recorded and _is_plain(value):
            try:
                return self._encoder.encode(value).decode()
            except UnicodeEncodeError:  # half of a surrogate pair
                pass
        return super().encode(value)


def _check_sendable(answer: Answer) -> None:
    """Raise NotReplayable if a server would refuse an answer's status or headers: it would fail at each replay."""
    if not isinstance(cast("object", answer.status), int) or not 200 <= answer.status <= 999:
        raise NotReplayable(f"its status is {answer.status!r}: give a number from 200 on")
    for name, value in cast("Iterable[tuple[object, object]]", answer.headers):
        if not isinstance(name, str) or not isinstance(value, str) or not _NAME(name) or not _VALUE(value):
            raise NotReplayable(
                f"its header {name!r} cannot be sent: give a name of RFC 9110, section 5.1, and a value in Latin-1 without "
                "line breaks, other control characters, and spaces around it"
            )


def _is_plain(record: Recorded) -> bool:
    """Return whether every field has exactly the type that is read back. If so, no trial read is needed."""
    status, headers, body, base64, missing = msgspec.structs.astuple(record)
    for name, text in headers:
        if type(name) is not str or type(text) is not str:
            return False
    return (
        type(status) is int
        and type(body) is str
        and type(base64) is bytes
        and (missing is None or type(missing) is str)
        and type(headers) is tuple
    )
