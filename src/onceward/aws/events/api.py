"""HTTP on Lambda, behind API Gateway, a function URL or a load balancer: requests that take effect once, and webhooks."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from copy import copy
from functools import partial
from typing import Final, Protocol, Unpack, cast
from urllib.parse import parse_qsl

from onceward.aws.events import api_event
from onceward.aws.events.api_event import Event
from onceward.aws.events.handler import LambdaHandler, namespace, naming_worker, time_left
from onceward.claim.called import refuse_not_begun
from onceward.claim.claim import Claim
from onceward.claim.decorated import DecoratedHandler
from onceward.claim.factory import refuse_guarded
from onceward.core.arguments import check_type
from onceward.core.belief import within
from onceward.core.policy import Options
from onceward.http.answer import Answer, Recorded, bodiless, recorded
from onceward.http.guarded import AnswerCodec, Guarded
from onceward.http.held import HeldRequest, claim, claim_async
from onceward.http.route import KeyedRequest, PendingRequest
from onceward.http.rules import Rules, rules_of
from onceward.once import Once, check_once

Function = Callable[..., object]
_Stage = KeyedRequest | HeldRequest | Answer | None
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
        name: the namespace of the keys; by default the Lambda function's name, and the function's module and qualified name.
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
    own_rules = rules_of(rules)
    if wait is not None:
        options = {**options, "on_busy": wait}

    def decorate(function: Function) -> LambdaHandler[object]:
        api = _Api(once, own_rules, function, name, options)

        def handle(event: object, context: object) -> object:
            request = _Request(api, event, context)
            if not api.is_async:
                return request.answer()
            from onceward.aws.events.loop import run

            return run(request.answer_async())

        return naming_worker(function, handle, once.guards.observers)

    return decorate


class _Api(Guarded):
    """A function and its fixed settings."""

    within = None

    def __init__(self, once: Once, rules: Rules, function: Function, name: str | None, options: Options) -> None:
        refuse_guarded(function)
        self.guard, handler = once.guards.for_function(function, namespace(once, function, name), options)
        if self.guard.policy.on_busy == "skip":
            raise ValueError(
                'on_busy="skip" does not fit HTTP, where each request needs an answer; give wait=SECONDS or nothing'
            )
        self.rules = rules
        self.function = function
        self.is_async = handler.is_async
        self.parameter = handler.parameter
        self.shape = api_event.REST

    def under(self, shape: api_event.Shape, remaining: float | None) -> "_Api":
        """Return this for one invocation: its leases and waits end ``remaining`` seconds from now."""
        policy, store = self.guard.policy, self.guard.store
        if remaining is not None:
            policy = within(store, policy, remaining)
            if policy.wait:
                policy = policy._replace(on_busy=min(policy.wait, max(0.0, remaining - RESERVE)))
        own = copy(self)
        own.guard, own.shape = self.guard.under(policy, AnswerCodec()), shape
        return own

    def recorded(self, key: str, value: object) -> Recorded:
        """Return the recorded answer. A function that completes its claim itself records its unchanged response."""
        if isinstance(value, Recorded):
            return value
        answer = api_event.answer_of(self.shape, value)
        return _NO_RESPONSE if answer is None else recorded(answer)


class _Request:
    """One invocation.

    Raises:
        MalformedEvent: the event is not an HTTP request.
    """

    def __init__(self, api: _Api, event: object, context: object) -> None:
        self._arguments = (event, context)
        self._shape, request, body = api_event.read(event)
        stage = api.rules.begin(request)
        self._stage = api.rules.ask(stage, body) if isinstance(stage, PendingRequest) else stage
        self._remaining = remaining = time_left(context)
        self._api = api.under(self._shape, remaining) if isinstance(self._stage, KeyedRequest) else api

    def answer(self) -> object:
        stage: _Stage = self._stage
        if isinstance(stage, KeyedRequest):
            stage = claim(self._api, stage)
        if isinstance(stage, HeldRequest):
            response = stage.call(partial(self._call, stage))
            return self._instead(stage.settle(self._outcome(stage, response)), response)
        if isinstance(stage, Answer):
            return api_event.response_of(self._shape, stage)
        return self._call(None)

    async def answer_async(self) -> object:
        stage: _Stage = self._stage
        if isinstance(stage, KeyedRequest):
            stage = await claim_async(self._api, stage)
        if isinstance(stage, HeldRequest):
            response = await stage.call_async(partial(self._await, stage))
            return self._instead(await stage.settle_async(self._outcome(stage, response)), response)
        if isinstance(stage, Answer):
            return api_event.response_of(self._shape, stage)
        return await self._await(None)

    def _outcome(self, held: HeldRequest, response: object) -> Recorded | Exception:
        answer = api_event.answer_of(self._shape, response)
        return _NO_RESPONSE if answer is None else held.judge.outcome(answer)

    def _instead(self, answer: Answer | None, response: object) -> object:
        return response if answer is None else api_event.response_of(self._shape, answer)

    def _call(self, held: HeldRequest | None) -> object:
        response = self._begin(held)
        refuse_not_begun(self._api.function, response)
        return response

    async def _await(self, held: HeldRequest | None) -> object:
        return await cast("Awaitable[object]", self._begin(held))

    def _begin(self, held: HeldRequest | None) -> object:
        """Call the function; if it is a coroutine function, it begins when its coroutine is awaited."""
        if held is not None and self._remaining is not None:
            held.claim.deadline = self._api.guard.clock() + self._remaining
        args: tuple[object, ...] = self._arguments
        kwargs: Mapping[str, object] = {}
        if self._api.parameter is not None:
            claim = None if held is None else held.claim
            args, kwargs = self._api.parameter.fill(cast("Claim", claim), args, kwargs)
        return self._api.function(*args, **kwargs)


class Receives(Protocol):
    """What :class:`onceward.web.webhooks.WebhookReceiver` has."""

    guarded: DecoratedHandler
    is_async: bool

    @property
    def accepts(self) -> bool:
        """Whether it answers before the event is handled."""

    @property
    def answer(self) -> Callable[..., Answer]:
        """Receive a delivery."""

    @property
    def answer_async(self) -> Callable[..., Coroutine[object, object, Answer]]:
        """Like :attr:`answer`, for a coroutine."""


def on_webhook(receiver: Receives) -> LambdaHandler[Event]:
    """Make a Lambda handler that gives each request to a receiver of webhooks, and returns its answer.

    Args:
        receiver: an :class:`onceward.web.webhooks.WebhookReceiver`, whose handler may be a coroutine function.

    Returns:
        The handler. It raises MalformedEvent before anything runs, if the event is not an HTTP request. It also raises
        the exceptions of the receiver's handler: the sender then gets an error, and delivers again.

    Raises:
        TypeError: it is no receiver.
        ValueError: the receiver has ``accept=True``: Lambda stops a function when it has answered.
    """
    check_type("on_webhook(receiver)", receiver, "answer", "a WebhookReceiver, as in on_webhook(hook)")
    if receiver.accepts:
        raise ValueError("accept=True: Lambda stops a function when it has answered, so the event would not be handled")

    def handle(event: Event, _context: object) -> Event:
        shape, request, body = api_event.read(event)
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        receive = receiver.answer_async if receiver.is_async else receiver.answer
        headers = {name: ",".join(request.lines(name)) for name, _ in request.headers}
        answer = receive(headers, body, method=request.method, query=query)
        if not isinstance(answer, Answer):
            from onceward.aws.events.loop import run  # a cold start without coroutines does not pay for it

            answer = run(answer)
        return api_event.response_of(shape, answer)

    return naming_worker(handle, handle, receiver.guarded.guard.observers)
