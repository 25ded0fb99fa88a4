"""HTTP on Lambda: functions behind API Gateway, a function URL or a load balancer, whose requests take effect once."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Final, Unpack, cast

from onceward.aws.events import api_event
from onceward.aws.events.handler import LambdaHandler, naming_worker, time_left
from onceward.claim.called import refuse_not_begun
from onceward.claim.claim import Claim
from onceward.claim.factory import refuse_guarded
from onceward.claim.guard import Guard
from onceward.claim.held import held
from onceward.core.belief import within
from onceward.core.policy import Options
from onceward.http.answer import Answer, Recorded, bodiless, recorded
from onceward.http.coverage import Coverage
from onceward.http.exchange import Exchange
from onceward.http.options import with_wait
from onceward.http.rules import Rules, rules_of
from onceward.http.verdict import KeyedRequest, PassedRequest, PendingRequest
from onceward.keys.ledger_keys import scoped_key
from onceward.observe.events import ROUTE
from onceward.once import Once, check_once
from onceward.results.codec import Codec

Function = Callable[..., object]
# The handler has run, so it does not run again, even if its caller cannot read the response.
_NO_RESPONSE: Final = bodiless(502, (), "the function did not return a response")
RESERVE: Final = 1.0  # seconds of the time left that a wait must leave for the answer


def on_api(
    once: Once,
    rules: Rules | None = None,
    *,
    name: str | None = None,
    wait: float | None = None,
    **options: Unpack[Options],
) -> Callable[[Function], LambdaHandler[object]]:
    """Make a function of ``(event, context)`` answer HTTP requests once for each idempotency key.

    It can be a coroutine function: all of them run in one event loop, kept for the life of the process. It gets the unchanged
    event and returns the usual response. A parameter annotated ``Claim`` gets the claim, or None for a request that passes unguarded.
    ``return claim.transact(writes, response)`` commits the effect and the response together.

    Args:
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key and how they are answered. ``Rules(scope=Scope.HOST)`` covers all POST and PATCH of
            callers that API Gateway has authenticated (IAM, Cognito, JWT).
        name: the namespace of the keys; by default the function's module and qualified name.
        wait: seconds a request waits for the answer to an earlier one; without it, it gets a 409 at once. The wait ends a
            second before the function's own time.
        **options: see :class:`onceward.Policy`; ``cache`` has no effect here. A lease ends with the invocation's time.

    Returns:
        A decorator. The handler raises MalformedEvent before anything runs, if the event is not an HTTP request. It raises the
        function's exception after the key is given back.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    check_once(once, "@on_api({})")
    policy, made = with_wait(options, wait), rules_of(rules)

    def decorate(function: Function) -> LambdaHandler[object]:
        api = _Api(once, made, function, name, policy)

        def handle(event: object, context: object) -> object:
            request = _Request(api, event, context)
            if not api.is_async:
                return request.answer()
            from onceward.aws.events.loop import run

            return run(request.answer_async())

        return naming_worker(function, handle, once)

    return decorate


class _Api:
    """A function and its fixed settings."""

    def __init__(self, once: Once, rules: Rules, function: Function, name: str | None, options: Options) -> None:
        refuse_guarded(function)
        guard, handler = once.guards.for_function(function, name, options)
        self.name = guard.name
        if guard.policy.on_busy == "skip":
            raise ValueError(
                'on_busy="skip" does not fit HTTP, where each request needs an answer; give wait=SECONDS or nothing'
            )
        self.rules = rules
        self.coverage = Coverage(rules)
        self.function = function
        self.is_async = handler.is_async
        self.parameter = handler.parameter
        self._guard = guard
        self._codec = Codec(Recorded)

    def guard(self, left: float | None) -> Guard:
        """Return a guard whose leases and waits end with the invocation, ``left`` seconds from now."""
        policy, store = self._guard.policy, self._guard.store
        if left is not None:
            policy = within(store, policy, left)
            if policy.wait:
                policy = policy._replace(on_busy=min(policy.wait, max(0.0, left - RESERVE)))
        return self._guard.under(policy, self._codec)


class _Request:
    """One invocation.

    Raises:
        MalformedEvent: the event is not an HTTP request.
    """

    def __init__(self, api: _Api, event: object, context: object) -> None:
        self._api = api
        self._given = (event, context)
        self._shape, request, body = api_event.read(event)
        asked = api.rules.begin(request)
        if asked is None:
            api.coverage.passed(request.method, request.path)
        self._asked = api.rules.ask(asked, body) if isinstance(asked, PendingRequest) else asked
        self._response: object = None
        self._failure: Exception | None = None  # the function's exception, if that is recorded
        self._deadline: float | None = None  # when the invocation is stopped, on the guard's clock

    def answer(self) -> object:
        asked = self._asked
        if isinstance(asked, Answer):
            return self._translated(asked)
        if not isinstance(asked, KeyedRequest):
            with asked or nullcontext():
                return self._watched(asked, self._called(None))
        guard, exchange, key = self._begin(asked)
        told = ROUTE.set(asked.route)
        try:
            run = lambda: self._run(exchange)
            record = guard.call(key, asked.fingerprint, run, (), {}, comes=asked.comes, provenance=asked.provenance)
        except Exception as error:
            return self._translated(exchange.refused(error))
        finally:
            ROUTE.reset(told)
        return self._ended(exchange, record)

    async def answer_async(self) -> object:
        asked = self._asked
        if isinstance(asked, Answer):
            return self._translated(asked)
        if not isinstance(asked, KeyedRequest):
            with asked or nullcontext():
                return self._watched(asked, await self._called_async(None))
        guard, exchange, key = self._begin(asked)
        told = ROUTE.set(asked.route)
        try:
            run = lambda: self._run_async(exchange)
            record = await guard.call_async(
                key, asked.fingerprint, run, (), {}, comes=asked.comes, provenance=asked.provenance
            )
        except Exception as error:
            return self._translated(exchange.refused(error))
        finally:
            ROUTE.reset(told)
        return self._ended(exchange, record)

    def _begin(self, asked: KeyedRequest) -> tuple[Guard, Exchange, str]:
        left = time_left(self._given[1])
        guard = self._api.guard(left)
        self._deadline = None if left is None else guard.clock() + left
        most = guard.policy.max_result
        assert most is not None  # the guard has asked the store
        return guard, Exchange(self._api.rules, asked, most), scoped_key(self._api.name, asked.key)

    def _watched(self, passed: PassedRequest | None, response: object) -> object:
        if passed is not None:
            answer = api_event.answer_of(self._shape, response)
            passed.answered(502 if answer is None else answer.status)
        return response

    def _ended(self, exchange: Exchange, record: object) -> object:
        if self._failure is not None:
            raise self._failure
        return self._translated(exchange.repeated(self._recorded(record)))

    def _translated(self, answer: Answer | None) -> object:
        return self._response if answer is None else api_event.response_of(self._shape, answer)

    def _run(self, exchange: Exchange) -> Recorded:
        claim = self._claimed()
        try:
            self._response = self._called(claim)
        except Exception as error:
            return self._failed(exchange, error)
        return self._kept(exchange)

    async def _run_async(self, exchange: Exchange) -> Recorded:
        claim = self._claimed()
        try:
            self._response = await self._called_async(claim)
        except Exception as error:
            return self._failed(exchange, error)
        return self._kept(exchange)

    def _failed(self, exchange: Exchange, error: Exception) -> Recorded:
        """Return what to record of a function that raised, or raise the error that gives the key back."""
        record = exchange.raised(error)
        if isinstance(record, Exception):
            raise record
        self._failure = error
        held().send_nothing()
        return exchange.ended(record)

    def _claimed(self) -> Claim:
        claim = held()
        claim.deadline = self._deadline
        return claim

    def _called(self, claim: Claim | None) -> object:
        args, kwargs = self._arguments(claim)
        response = self._api.function(*args, **kwargs)
        refuse_not_begun(self._api.function, response)
        return response

    async def _called_async(self, claim: Claim | None) -> object:
        args, kwargs = self._arguments(claim)
        return await cast("Callable[..., Awaitable[object]]", self._api.function)(*args, **kwargs)

    def _arguments(self, claim: Claim | None) -> tuple[tuple[object, ...], Mapping[str, object]]:
        parameter = self._api.parameter
        return (self._given, {}) if parameter is None else parameter.fill(cast("Claim", claim), self._given, {})

    def _kept(self, exchange: Exchange) -> Recorded:
        answer = api_event.answer_of(self._shape, self._response)
        record = exchange.ended(_NO_RESPONSE) if answer is None else exchange.answered(answer)
        if record.is_failure:
            held().send_nothing()
        return record

    def _recorded(self, record: object) -> Recorded:
        """Return the recorded answer. A function that completes its claim itself records its unchanged response."""
        if isinstance(record, Recorded):
            return record
        answer = api_event.answer_of(self._shape, record)
        return _NO_RESPONSE if answer is None else recorded(answer)
