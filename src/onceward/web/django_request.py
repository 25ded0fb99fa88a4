"""What the rules decide on one of Django's requests."""

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig, SynchronousOnlyOperation
from django.http import HttpRequest
from django.http.request import RawPostDataException

from onceward.http.answer import Answer
from onceward.http.body import is_long
from onceward.http.guarded import Guarded
from onceward.http.request import Request
from onceward.http.route import KeyedRequest, PassedRequest, PendingRequest
from onceward.web.environ import request_of


def ask(guarded: Guarded, request: HttpRequest) -> KeyedRequest | PassedRequest | Answer | None:
    """Return what the rules decide on a request; None: it passes unchanged.

    Raises:
        ImproperlyConfigured: its body was read before, and not kept.
    """
    pending = _begun(guarded, request)
    return _asked(guarded, request, pending) if isinstance(pending, PendingRequest) else pending


async def ask_async(guarded: Guarded, request: HttpRequest) -> KeyedRequest | PassedRequest | Answer | None:
    """As :func:`ask`, for a coroutine."""
    try:
        pending = _begun(guarded, request)
    except SynchronousOnlyOperation:  # a scope that asks the database
        pending = await sync_to_async(_begun)(guarded, request)
    if not isinstance(pending, PendingRequest):
        return pending
    if not is_long(pending.request, request.body):
        return _asked(guarded, request, pending)
    return await sync_to_async(_asked, thread_sensitive=False)(guarded, request, pending)


def _begun(guarded: Guarded, request: HttpRequest) -> PendingRequest | PassedRequest | Answer | None:
    """Return what the rules decide before the body is compared. The body of a PendingRequest is read and complete."""
    if request.method not in guarded.methods:
        return None
    pending = guarded.rules.begin(_request(request))
    if not isinstance(pending, PendingRequest):
        return pending
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdecimal()):
        return guarded.rules.unreadable("its Content-Length is not a number")
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        return guarded.rules.too_large()
    except RawPostDataException as error:
        raise ImproperlyConfigured(
            "the request's body was read before its idempotency key, and not kept: put IdempotencyMiddleware before the reader, "
            "or read it with request.body. Nothing has run"
        ) from error
    if len(body) < int(length):
        return guarded.rules.unreadable(f"it has {len(body)} bytes, and its Content-Length is {length}")
    return pending


def _asked(guarded: Guarded, request: HttpRequest, pending: PendingRequest) -> KeyedRequest | Answer | None:
    asked = guarded.rules.ask(pending, request.body)
    if isinstance(asked, KeyedRequest) and request.resolver_match is not None:  # the route's name in the URLconf
        return asked._replace(route=f"{request.method} /{request.resolver_match.route}")
    return asked


def _request(request: HttpRequest) -> Request:
    found = request_of(request.META, {"request": request})
    # Under ASGI the paths of META are not encoded as in WSGI.
    found.path, found.root = request.path_info, request.path.removesuffix(request.path_info).rstrip("/")
    return found
