"""A receiver as a view of Django."""

from collections.abc import Callable
from typing import cast

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.views.decorators.csrf import csrf_exempt

from onceward.web.webhooks.receiver import WebhookReceiver, check_plain


def view(receiver: WebhookReceiver) -> Callable[[HttpRequest], HttpResponse]:
    """Make a view. It has no CSRF token: the signature says who sends.

    In Django: ``path("stripe", view(hook))``.

    With ``ATOMIC_REQUESTS``, decorate it with ``transaction.non_atomic_requests``: the answer must not wait for the commit.

    Raises:
        TypeError: the receiver's handler is a coroutine function.
    """
    check_plain(receiver)

    def receive(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        answer = receiver.answer(request.headers, request.body)
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    return cast("Callable[[HttpRequest], HttpResponse]", csrf_exempt(receive))
