"""A receiver as a view of Django."""

from collections.abc import Callable
from functools import partial
from typing import cast

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from onceward.claim.held import HeldClaim
from onceward.web.django_exchange import response_of
from onceward.web.django_transactions import TransactionJoined, refuse_transaction
from onceward.web.webhooks.receiver import AROUND, WebhookReceiver


def view(receiver: WebhookReceiver) -> Callable[[HttpRequest], HttpResponseBase]:
    """Make a view. It has no CSRF token: the signature says who sends.

    In Django: ``path("stripe", view(hook))``.

    With ``ATOMIC_REQUESTS`` the handler has its transaction inside the view, not around it. If the ledger is in that database, the
    key completes in the same transaction. If it is not, the transaction commits first, and the log says so here. With
    ``accept=True`` the handler runs after the request, in no transaction of it.

    The view raises ImproperlyConfigured before anything runs, if a transaction is open around it.

    Raises:
        TypeError: the receiver's handler is a coroutine function.
    """
    receiver.check_plain()
    inside = TransactionJoined(receiver.__name__, receiver.guarded.guard.store)
    around = None if receiver.accepts else partial(inside.call, complete=HeldClaim.complete)
    if around is not None:
        inside.look()

    def receive(request: HttpRequest) -> HttpResponseBase:
        refuse_transaction()
        token = AROUND.set(around)
        try:
            answer = receiver.answer(
                request.headers, request.body, method=request.method or "", query=request.GET.dict()
            )
        finally:
            AROUND.reset(token)
        return response_of(answer)

    vars(receive)["_non_atomic_requests"] = inside  # Django reads it
    return cast("Callable[[HttpRequest], HttpResponseBase]", csrf_exempt(receive))
