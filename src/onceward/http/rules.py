"""The rules of the Idempotency-Key header (draft-ietf-httpapi-idempotency-key-header-07), without I/O or a framework.

A shell calls them like this, and gives the result to an :class:`onceward.http.guarded.Exchange`::

    pending = rules.begin(request)           # None: not ours, call the application; an Answer: send it
    asked = rules.ask(pending, body)         # the same; else a key and a fingerprint for the guard
"""

from collections.abc import Callable, Collection
from typing import Final, Literal, cast

import msgspec

from onceward.core.arguments import check_count, check_flag, check_hook, seconds
from onceward.core.origin import PARENT
from onceward.core.writes import UNKNOWN
from onceward.errors import KeyMissing, OncewardError
from onceward.http import problem
from onceward.http.answer import (
    LARGEST,
    Answer,
    Recorded,
    TooLargeDecoded,
    bodiless,
    fault_of,
    plain,
    recorded,
    replay,
)
from onceward.http.body import Fingerprint, fingerprinter
from onceward.http.problem import DOCS, Problem
from onceward.http.request import BadRequest, Request, read_key
from onceward.http.route import KeyedRequest, PendingRequest, Route
from onceward.http.scope import Identify, Scope, Unscoped, scope_of
from onceward.observe.logs import logger

MIB: Final = 1 << 20
_ESCAPED: Final = 6  # bytes that JSON takes for one byte of text, at most
# These statuses are not outcomes: the request did not run, or must be sent again. 307 and 308 send it elsewhere with the same
# key (RFC 9110, sections 15.4.8 and 15.4.9).
_REFUSALS: Final = frozenset({307, 308, 401, 408, 425, 429})


def lasting(status: int) -> bool:
    """Return whether an answer is recorded by default: all but 5xx, 307, 308, 401, 408, 425 and 429.

    This applies if nobody knows whether the endpoint began. If it began, all answers but 5xx are recorded. Other redirects are
    recorded because many applications answer an accepted form with one (RFC 9110, section 15.4.4).
    """
    return status < 500 and status not in _REFUSALS


class Rules:
    """Which requests take effect once, and how they are answered.

    Args:
        *routes: the requests that carry a key; the first match counts. Without routes, every POST and PATCH.
        strict: refuse keys without quotes. The draft does not allow these, but most clients send them.
        length: the fewest and the most characters of a key.
        scope: whose key it is; required. Give a :class:`Scope`, such as ``Scope.CREDENTIAL`` or ``Scope.EVERYBODY``; a
            callable that is given the :class:`Request` and returns the verified user; ``cookie:NAME``; or ``header:NAME``.
            The cookie must be an opaque session id, which does not change.
        fingerprint: what must not change under one key. "all" is method, path, query and body; "path" is method and path. A
            callable is given the :class:`Request` and the body; its result stands for query and body. A body in
            gzip or deflate is given decoded; one of more than 16 MiB when decoded is refused with 413.
        record: which answers are recorded and replayed: a callable that is given the status, or a collection of statuses.
            After any other answer the key is given back, and the next request runs. An unhandled exception counts as 500.
            A request that is refused before its endpoint began is never recorded.
        record_within: seconds an answer waits for its record if the ledger cannot be reached. Then it goes out with
            ``Idempotency-Recorded: pending``, and recording continues for at most two leases. A retry gets 409 until the lease
            ends. Without a record, a later retry runs again. None waits without limit. On Lambda, which freezes after an answer,
            it is always None.
        max_request: bytes of a request's body; a longer one is refused with 413.
        max_response: bytes of an answer's body; a longer one is not recorded, only its status and headers.
        docs: the URL of your API's documentation of keys. A problem's type is this URL and a fragment.

    Raises:
        ValueError, TypeError: an argument is not valid.
    """

    def __init__(
        self,
        *routes: Route,
        strict: bool = False,
        length: tuple[int, int] = (1, 255),
        scope: Scope | Identify | str | None = None,
        fingerprint: Literal["all", "path"] | Fingerprint = "all",
        record: Callable[[int], bool] | Collection[int] = lasting,
        record_within: float | None = 5.0,
        max_request: int = MIB,
        max_response: int = MIB,
        docs: str = DOCS,
    ) -> None:
        check_flag("strict", strict)
        if not 1 <= length[0] <= length[1]:
            raise ValueError(f"length={length!r}: give the least and the most characters, as in (16, 255)")
        check_count("max_request", max_request, 0)
        check_count("max_response", max_response, 0)
        self.routes = routes or (Route(),)
        self.record_within = None if record_within is None else seconds(record_within)
        self.max_request = max_request
        self.max_response = max_response
        self.strict = strict
        self.length = length
        self._print = fingerprinter(fingerprint)
        self._records = _statuses(record)
        self.scope = scope_of(scope)  # None is everybody's
        self.docs = docs

    # --- a request --------------------------------------------------------------------------------------------------

    def route(self, method: str, path: str) -> Route | None:
        """Return the route that covers a request, or None for one that passes unchanged."""
        for route in self.routes:
            if method in route.methods and route.matches(path) is not None:
                return route
        return None

    def begin(self, request: Request, route: Route | None = None) -> PendingRequest | Answer | None:
        """Check a request before its body arrives.

        Args:
            request: the request.
            route: the one that covers it, if you have called :meth:`route` already.

        Returns:
            None for a request that passes unchanged, an Answer for one that is refused here, else the PendingRequest for :meth:`ask`.
        """
        route = route or self.route(request.method, request.path)
        if route is None:
            return None
        key: str | None = None
        try:
            if route.read is None:
                lines = request.lines(route.header)
                if not lines:
                    return self._keyless(route)
                least, most = self.length
                key = read_key(lines, strict=self.strict, least=least, most=most)
            length = request.lines("content-length")
            if length and length[0].isdecimal() and int(length[0][:20]) > self.max_request:
                return self.too_large()
            scope = None if self.scope is None else self.scope(request)
        except BadRequest as error:
            return self._refuse(problem.MALFORMED.about(where=_where(route), why=error))
        except Unscoped as error:
            return self._refuse(problem.UNSCOPED.about(why=error))
        if isinstance(scope, Answer):
            return scope
        # tuple.__new__ takes half the time of PendingRequest(...).
        return tuple.__new__(PendingRequest, (request, route, key, scope, request.lines("content-encoding")))

    def ask(self, pending: PendingRequest, body: bytes) -> KeyedRequest | Answer | None:
        """Check a request with its body. Return None or an Answer as :meth:`begin` does, else the guard's question.

        Raises:
            TypeError: the scope's type cannot be part of a key.
        """
        request, route, key, scope, codings = pending
        if len(body) > self.max_request:
            return self.too_large()
        sent = body
        if codings:
            codings = [line for line in codings if line.strip().lower() != "identity"]
            try:
                body = plain(body, codings)
            except TooLargeDecoded:
                return self._refuse(problem.TOO_LARGE.about(most=f"{LARGEST} decoded"))
        place: tuple[str, ...] = ()
        name: object = key
        if route.read is not None:
            try:
                value = route.read(body)
            except (BadRequest, KeyMissing) as error:
                return self._refuse(problem.MALFORMED.about(where=_where(route), why=error))
            if value is None:
                if body and codings and body is sent:  # the application may read it
                    why = "the body cannot be decoded. Send it plain, in gzip or in deflate"
                    return self._refuse(problem.MALFORMED.about(where=_where(route), why=why))
                return self._keyless(route)
            least, most = self.length
            length = sum(len(str(part)) for part in value) if isinstance(value, list) else len(str(value))
            if not least <= length <= most:
                why = f"it has {length} characters; {least} to {most} are allowed"
                return self._refuse(problem.MALFORMED.about(where=_where(route), why=why))
            # A key in a body is the number of a thing. Another path's things may have the same numbers, so the path is part of it.
            name, place = value, (request.place,)
        print_ = self._print(request, body)
        # As above.
        label = f"{request.method} {route.path}"
        provenance = request.provenance() if request.lines(PARENT) else UNKNOWN
        fields = ((name, *place, scope), print_, label, request.comes, provenance)
        return tuple.__new__(KeyedRequest, fields)

    def too_large(self) -> Answer:
        """Return the answer to a request whose body has more than ``max_request`` bytes."""
        return self._refuse(problem.TOO_LARGE.about(most=self.max_request))

    def unreadable(self, why: str) -> Answer:
        """Return the answer to a request whose body is incomplete; ``why`` tells the sender."""
        return self._refuse(problem.UNREADABLE.about(why=why))

    # --- its answer -------------------------------------------------------------------------------------------------

    def records(self, status: int, began: bool | None = None) -> bool:
        """Return whether an answer of that status is recorded; after any other the key is given back.

        If ``record`` raises, that is logged and the answer is recorded, so that the request does not run again.

        Args:
            status: the answer's.
            began: whether the endpoint began; None if unknown.
        """
        if began is False:
            return False
        if began and self._records is lasting:
            return status < 500
        try:
            return bool(self._records(status))
        except Exception:
            logger().exception("record(%d) raised; the answer is recorded", status)
            return True

    def is_failure(self, status: int, began: bool | None) -> bool:
        """Return whether an unrecorded answer is the endpoint's failure. If not, the request was refused before it ran."""
        return began is not False and (began is True or status not in _REFUSALS)

    def failure(self) -> Answer:
        """Return the recorded 500 that later requests get after the handler raised an exception."""
        return self._refuse(problem.FAILED)

    def keep(self, answer: Answer, most: int | None) -> Recorded:
        """Return the part of an answer to record. ``most`` is the ledger's limit in bytes (``Policy.max_result``)."""
        if len(answer.body) > self.max_response:
            return bodiless(answer.status, answer.headers, f"its body has more than {self.max_response} bytes")
        if (fault := fault_of(answer, blanks=True)) is not None:
            return bodiless(answer.status, (), fault)
        record = recorded(answer)
        if most is not None and _ESCAPED * len(answer.body) > most // 2 and len(msgspec.json.encode(record)) > most:
            return bodiless(answer.status, answer.headers, f"it takes more than {most} bytes in the ledger")
        return record

    def repeat(self, record: Recorded) -> Answer:
        """Return the answer to a request that has run before."""
        if record.missing is not None:
            return self._refuse(problem.BODILESS.about(status=record.status, why=record.missing))
        return replay(record)

    def refusal(self, error: OncewardError) -> Answer | None:
        """Return the answer to a request that the guard refused with ``error``; None for any other error."""
        reason = problem.of_error(error)
        return None if reason is None else self._refuse(reason)

    def _keyless(self, route: Route) -> Answer | None:
        return self._refuse(problem.MISSING.about(where=_where(route))) if route.required else None

    def _refuse(self, reason: Problem) -> Answer:
        return reason.answer(self.docs)


def _statuses(record: Callable[[int], bool] | Collection[int]) -> Callable[[int], bool]:
    """Return the function that tells whether an answer of a status is recorded."""
    if callable(record):
        check_hook("record", record)
        return record
    known = frozenset(record)
    if not known or not all(type(status) is int for status in known):
        raise TypeError(f"record={record!r}: give statuses, as in record=[200, 201], or a callable that is given one")
    return known.__contains__


def rules_of(rules: Rules | None) -> Rules:
    """Return the given rules.

    Raises:
        TypeError: the argument is not Rules.
    """
    if isinstance(cast("object", rules), Rules):
        return cast("Rules", rules)
    raise TypeError(
        f"rules={rules!r}: give Rules, as in rules=Rules(Route('/orders'), scope=Scope.CREDENTIAL); scope= says whose keys they are"
    )


def endpoint_rules(rules: Rules | None) -> Rules:
    """Return the given rules, for an endpoint that a framework has already chosen.

    Raises:
        TypeError: they are not Rules.
        ValueError: they have paths, so they might not cover the endpoint.
    """
    rules = rules_of(rules)
    for route in rules.routes:
        if route.path != "*":
            raise ValueError(
                f"Route({route.path!r}): give it no path, because the endpoint has one. Or guard the whole application"
            )
    return rules


def _where(route: Route) -> str:
    return (
        f"the header {route.key}" if route.read is None else f"the field {route.key.removeprefix('body.')} of the body"
    )
