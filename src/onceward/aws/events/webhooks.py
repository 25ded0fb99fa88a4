"""Webhooks that API Gateway, a function URL or a load balancer passes on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol
from urllib.parse import parse_qsl

from onceward.aws.events import api_event
from onceward.aws.events.api_event import Event
from onceward.core.arguments import check_type
from onceward.http.answer import Answer


class Receives(Protocol):
    """What :class:`onceward.web.webhooks.WebhookReceiver` has."""

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


def on_webhook(receiver: Receives) -> Callable[[Event, object], Event]:
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

    def handle(event: Event, _context: object = None) -> Event:
        shape, request, body = api_event.read(event)
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        receive = receiver.answer_async if receiver.is_async else receiver.answer
        answer = receive(dict(request.headers), body, method=request.method, query=query)
        if not isinstance(answer, Answer):
            answer = asyncio.run(answer)
        return api_event.response_of(shape, answer)

    return handle
