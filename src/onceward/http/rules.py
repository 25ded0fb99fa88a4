"""The rules of the Idempotency-Key header, without I/O and without a framework.

They follow draft-ietf-httpapi-idempotency-key-header-07. A shell drives them so::

    pending = rules.begin(request)           # None: not ours, call the application; an Answer: send it
    asked = rules.ask(pending, body)         # the same; else a key and a fingerprint for the guard

and hands what it got to an :class:`onceward.http.exchange.Exchange`, which is one request under a guard.
"""

from collections.abc import Callable, Collection
from typing import Final, Literal, cast

import msgspec

from onceward.claim.arguments import check_flag, check_hook
from onceward.errors import KeyMissing, OncewardError
from onceward.http import problem
from onceward.http.answer import Answer, Recorded, bodiless, recorded, replay
from onceward.http.body import BadBody
from onceward.http.header import BadKey, read_key
from onceward.http.options import Fingerprint, check_length, check_seconds, exempt_routes, fingerprinter, statuses
from onceward.http.problem import DOCS, Problem
from onceward.http.request import Request
from onceward.http.route import Route
from onceward.http.scope import Identify, Scope, Unscoped, scope_of
from onceward.http.verdict import KeyedRequest, PassedRequest, PendingRequest
from onceward.observe.logs import logger

MIB: Final = 1 << 20
Event = Literal["claimed", "replayed", "conflict", "mismatch"]
OnEvent = Callable[[Event, str], object]
_EVENTS: Final[dict[int, Event]] = {409: "conflict", 422: "mismatch"}
_ESCAPED: Final = 6  # bytes that JSON takes for one byte of text, at most
# By these a request is refused before it is carried out: 401 by who authenticates, 429 by who counts, 408 and 425 ask for it
# again. 307 and 308 ask for it again elsewhere, where it comes with the same key (RFC 9110, sections 15.4.8 and 15.4.9).
_REFUSALS: Final = frozenset({307, 308, 401, 408, 425, 429})


def lasting(status: int) -> bool:
    """Tell whether an answer is an outcome to be recorded, by default: all but 5xx, 307, 308, 401, 408, 425 and 429.

    That is for who cannot tell whether the endpoint began. Of an endpoint that began, all answers but 5xx are recorded.
    Any other redirect is one, too: it is how many applications answer a form that was accepted (RFC 9110, section 15.4.4).
    """
    return status < 500 and status not in _REFUSALS


class Rules:
    """Which requests take effect once, and how they are answered.

    Args:
        *routes: the requests that carry a key; the first that covers a request counts. None given is every POST and PATCH.
        strict: refuse keys without quotes, which the draft does not allow and most clients send.
        length: how many characters a key has, at least and at most.
        scope: whose key it is, which you must say: a :class:`Scope`, such as ``Scope.CREDENTIAL`` or ``Scope.EVERYBODY``; a
            callable that is given the :class:`Request` and returns the verified user; ``cookie:NAME``; or ``header:NAME``.
        fingerprint: what must not change under one key. "all" is method, path, query and body; "path" is method and path; a
            callable is given the :class:`Request` and the body, and what it returns stands for query and body.
        exempt: paths that are not guarded, written as those of routes.
        record: which answers are recorded and replayed: a callable that is given the status, or a collection of statuses.
            After any other answer the key is given back, and the next request is carried out. An exception that nobody
            handles counts as 500. A request that was refused before its endpoint began is never recorded.
        record_within: seconds for which an answer waits for its record when the ledger cannot be reached. After that it goes
            out with ``Idempotency-Recorded: pending``, and recording goes on behind it until the lease ends. A retry gets 409
            until then; when recording has failed, the next one is carried out again. None lets the answer wait. On Lambda,
            which freezes after an answer, it is always None.
        max_request: bytes of a request's body; a longer one is refused with 413.
        max_response: bytes of an answer's body; a longer one is recorded without it.
        docs: the URL of the documentation of your API's keys. A problem's type is this and a fragment.
        on_event: called with "claimed", "replayed", "conflict" or "mismatch" and the route, such as ``POST /orders/{id}``.

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
        exempt: Collection[str] = (),
        record: Callable[[int], bool] | Collection[int] = lasting,
        record_within: float | None = 5.0,
        max_request: int = MIB,
        max_response: int = MIB,
        docs: str = DOCS,
        on_event: OnEvent | None = None,
    ) -> None:
        for route in cast("tuple[object, ...]", routes):
            if not isinstance(route, Route):
                raise TypeError(f"{route!r}: give routes, as in Rules(Route('/orders'), scope=...)")
        check_flag("strict", strict)
        check_length(length)
        for name, value in (("max_request", max_request), ("max_response", max_response)):
            if type(value) is not int or value < 0:
                raise ValueError(f"{name}={value!r}: give a number of bytes")
        if not isinstance(cast("object", docs), str) or any(character in docs for character in '<>"# \r\n'):
            raise ValueError(f"docs={docs!r}: give a URL without a fragment")
        if on_event is not None:
            check_hook("on_event", on_event)
        check_seconds("record_within", record_within)
        self.routes = routes or (Route(),)
        self.record_within = record_within
        self.max_request = max_request
        self.max_response = max_response
        self.strict = strict
        self.length = length
        self.exempt = exempt_routes(exempt)
        self._print = fingerprinter(fingerprint)
        self._records = statuses(record)
        self.scope = scope_of(scope)  # None is everybody's
        self._docs = docs
        self._on_event = on_event

    # --- a request --------------------------------------------------------------------------------------------------

    def route(self, method: str, path: str) -> Route | None:
        """Return the route that covers a request, or None for one that is let through as it is."""
        for route in self.routes:
            if route.covers(method, path):
                return None if self.exempt and self.exempts(path) else route
        return None

    def covers(self, method: str, path: str) -> bool:
        """Tell whether a route covers a request, or its path is exempt."""
        return self.route(method, path) is not None or self.exempts(path)

    def exempts(self, path: str) -> bool:
        """Tell whether a path is one of those that are not guarded."""
        return any(route.covers("*", path) for route in self.exempt)

    def begin(self, request: Request, route: Route | None = None) -> PendingRequest | PassedRequest | Answer | None:
        """Look at a request before its body is there.

        Args:
            request: the request.
            route: the one that covers it, for who has asked :meth:`route` already.

        Returns:
            None for a request that is let through as it is, PassedRequest for one that the application must refuse, an answer for
            one that is refused here, else what to go on with.
        """
        route = route or self.route(request.method, request.path)
        if route is None:
            return None
        try:
            return self._begun(request, route)
        except BadKey as error:
            return self._refuse(problem.malformed(_where(route), str(error)))
        except Unscoped as error:
            return self._refuse(problem.unscoped(str(error)))

    def _begun(self, request: Request, route: Route) -> PendingRequest | PassedRequest | Answer | None:
        key: str | None = None
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
        if type(scope) is not str:
            if scope is Scope.PASS:
                return PassedRequest(f"{request.method} {route.path}")
            if isinstance(scope, Answer):
                return scope
        # tuple.__new__ takes half the time of PendingRequest(...).
        return tuple.__new__(PendingRequest, (request, route, key, scope))

    def ask(self, pending: PendingRequest, body: bytes) -> KeyedRequest | Answer | None:
        """Look at a request with its body; returns as :meth:`begin` does.

        Raises:
            TypeError: the scope is of a type that no key can be made of.
        """
        request, route, key, scope = pending
        if len(body) > self.max_request:
            return self.too_large()
        place: tuple[str, ...] = ()
        name: object = key
        if route.read is not None:
            try:
                found = route.read(body)
            except (BadBody, KeyMissing) as error:
                return self._refuse(problem.malformed(_where(route), str(error)))
            if found is None:
                return self._keyless(route)
            least, most = self.length
            length = sum(len(str(part)) for part in found) if isinstance(found, list) else len(str(found))
            if not least <= length <= most:
                why = f"it has {length} characters; {least} to {most} are taken"
                return self._refuse(problem.malformed(_where(route), why))
            # A client chooses a header's key for this one request; what stands in a body is the number of something, and the
            # things of another path have numbers of their own.
            name, place = found, (request.place,)
        print_ = self._print(request, body)
        # As above.
        return tuple.__new__(KeyedRequest, ((name, *place, scope), print_, f"{request.method} {route.path}"))

    def too_large(self) -> Answer:
        """Return the answer to a request whose body has more than ``max_request`` bytes."""
        return self._refuse(problem.too_large(self.max_request))

    def unreadable(self, why: str) -> Answer:
        """Return the answer to a request whose body cannot be had in full; ``why`` says so to its sender."""
        return self._refuse(problem.unreadable(why))

    # --- its answer -------------------------------------------------------------------------------------------------

    def records(self, status: int, began: bool | None = None) -> bool:
        """Tell whether an answer of that status is recorded; after any other the key is given back.

        When ``record`` raises, that is logged, and the answer recorded: what was carried out is not to be again.

        Args:
            status: the answer's.
            began: whether the endpoint began; None when nobody can tell.
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

    def failed(self, status: int, began: bool | None) -> bool:
        """Tell whether an answer that is not recorded is the endpoint's failure; if not, the request was refused before."""
        return began is not False and (began is True or status not in _REFUSALS)

    def failure(self) -> Answer:
        """Return what later requests get when the handler has raised an exception, and 500 is recorded."""
        return self._refuse(problem.failed())

    def keep(self, answer: Answer, most: int) -> Recorded:
        """Return what to record of an answer; ``most`` is how many bytes the ledger takes (``Policy.max_result``)."""
        if len(answer.body) > self.max_response:
            return bodiless(answer.status, answer.headers, f"its body has more than {self.max_response} bytes")
        kept = recorded(answer)
        if _ESCAPED * len(answer.body) > most // 2 and len(msgspec.json.encode(kept)) > most:
            return bodiless(answer.status, answer.headers, f"it takes more than {most} bytes in the ledger")
        return kept

    def repeat(self, kept: Recorded, route: str) -> Answer:
        """Return the answer to a request that was carried out before."""
        if kept.missing is not None:
            self.tell("conflict", route)
            return self._refuse(problem.bodiless(kept.status, kept.missing))
        self.tell("replayed", route)
        return replay(kept)

    def refusal(self, error: OncewardError, route: str) -> Answer | None:
        """Return the answer to a request that the guard refused with ``error``; None for an error that is none of its own."""
        found = problem.refused(error)
        if found is None:
            return None
        if found.status in _EVENTS:
            self.tell(_EVENTS[found.status], route)
        return self._refuse(found)

    def tell(self, event: Event, route: str) -> None:
        """Call ``on_event``; what it raises is logged and changes nothing."""
        if self._on_event is None:
            return
        try:
            self._on_event(event, route)
        except Exception:
            logger().exception("%s: on_event raised, which changes nothing", route)

    def _keyless(self, route: Route) -> Answer | None:
        return self._refuse(problem.missing(_where(route))) if route.required else None

    def _refuse(self, found: Problem) -> Answer:
        return found.answer(self._docs)


def rules_of(given: Rules | None) -> Rules:
    """Return rules as they were given.

    Raises:
        TypeError: they are none.
    """
    if isinstance(cast("object", given), Rules):
        return cast("Rules", given)
    raise TypeError(
        f"rules={given!r}: give Rules, as in rules=Rules(Route('/orders'), scope=Scope.CREDENTIAL); scope= says whose keys they are"
    )


def _where(route: Route) -> str:
    return (
        f"the header {route.key}" if route.read is None else f"the field {route.key.removeprefix('body.')} of the body"
    )
