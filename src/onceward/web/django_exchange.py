"""What the rules decide on Django's requests, what is recorded of its responses, and how to send them while a key is claimed."""

from collections.abc import Callable
from typing import Final, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig, SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import RawPostDataException

from onceward.claim.held import HeldClaim
from onceward.http.answer import PENDING, Answer, AnswerGate, Recorded
from onceward.http.guarded import Guarded
from onceward.http.held import HeldRequest
from onceward.http.request import Request
from onceward.http.route import KeyedRequest, PendingRequest
from onceward.web.sending import Sending, SendingAsync
from onceward.web.wsgi import request_of

STREAMED: Final = "onceward.streamed"  # in the request's META: the response that a server is going to close


def ask(guarded: Guarded, request: HttpRequest) -> KeyedRequest | Answer | None:
    """Return what the rules decide on a request; None: it passes unchanged.

    Raises:
        ImproperlyConfigured: it is no HttpRequest, or its body was read before, and not kept.
    """
    pending = _begin(guarded, request)
    return _ask(guarded, request, pending) if isinstance(pending, PendingRequest) else pending


async def ask_async(guarded: Guarded, request: HttpRequest) -> KeyedRequest | Answer | None:
    """As :func:`ask`, for a coroutine."""
    try:
        pending = _begin(guarded, request)
    except SynchronousOnlyOperation:  # a scope that asks the database
        pending = await sync_to_async(_begin)(guarded, request)
    if not isinstance(pending, PendingRequest):
        return pending
    if not pending.is_long(request.body):
        return _ask(guarded, request, pending)
    return await sync_to_async(_ask, thread_sensitive=False)(guarded, request, pending)


def _begin(guarded: Guarded, request: HttpRequest) -> PendingRequest | Answer | None:
    """Return what the rules decide before the body is compared. The body of a PendingRequest is read and complete."""
    if not isinstance(request, HttpRequest):  # Django REST framework renders the response after the guard
        raise ImproperlyConfigured(
            f"@idempotent was called with a {type(request).__name__}, not with Django's HttpRequest: put it above @api_view, or "
            'on a class with @method_decorator(idempotent(...), name="dispatch"). Nothing has run'
        )
    if request.method not in guarded.methods:
        return None
    pending = guarded.rules.begin(_request(request))
    if not isinstance(pending, PendingRequest):
        return pending
    length = request.META.get("CONTENT_LENGTH")
    if not length and request.META.get("HTTP_TRANSFER_ENCODING") and "wsgi.input" in request.META:
        return guarded.rules.unreadable("Django reads no chunked bodies under WSGI; send it with a Content-Length")
    length = length or "0"
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


def _ask(guarded: Guarded, request: HttpRequest, pending: PendingRequest) -> KeyedRequest | Answer | None:
    stage = guarded.rules.ask(pending, request.body)
    if isinstance(stage, KeyedRequest) and request.resolver_match is not None:  # the route's name in the URLconf
        return stage._replace(route=f"{request.method} /{request.resolver_match.route}")
    return stage


def _request(request: HttpRequest) -> Request:
    own = request_of(request.META, {"request": request})
    # Under ASGI the paths of META are not encoded as in WSGI.
    own.path, own.root = request.path_info, request.path.removesuffix(request.path_info).rstrip("/")
    return own


def finish(
    held: HeldRequest, request: HttpRequest, response: HttpResponseBase, instead: Answer | None
) -> HttpResponseBase:
    """Return what the client gets: a streamed response, which is recorded when it is sent, or a recorded one, or another one ``instead``."""
    if response.streaming:
        request.META[STREAMED] = response
        return _stream(held, response)  # Django iterates a synchronous one in a thread
    close = cast("Callable[[], None]", response.close)
    if instead is not None:
        close()
        return response_of(instead)
    if held.pending:
        response[PENDING[0]] = PENDING[1]
        # A stopping server waits for requests. Under ASGI this delays no client.
        if hasattr(request, "scope") and (recorder := held.recorder) is not None:

            def close_and_join() -> None:
                close()
                recorder.join()

            response.close = close_and_join
    return response


def response_of(reply: Answer) -> HttpResponseBase:
    """Return an answer as a response."""
    response = HttpResponse(reply.body, status=reply.status)
    del response["Content-Type"]  # the class's default
    for name, value in reply.headers:
        response[name] = f"{response[name]}, {value}" if name in response else value
    return response


def answer(response: HttpResponseBase) -> Answer:
    """Return a response as an answer, to complete a claim with its effect. It must not be a streaming response.

    A template response is rendered. A view of Django REST framework gives ``self.finalize_response(request, response)``.
    """
    if callable(render := getattr(response, "render", None)):
        render()
    return Answer(response.status_code, list(response.items()), response.content)


def outcome(claim: HeldClaim, response: HttpResponseBase) -> Recorded | Answer | Exception:
    """Return what a claim must record of a response together with its effect, or why it must not.

    The face asks the same when it has the response: then the claim is completed already, or its key is given back.
    """
    reply = answer(response)
    if claim.exchange is None:  # the view is guarded as a function
        return reply
    result: Recorded | Exception = claim.exchange.outcome(reply)
    if isinstance(result, Recorded) and result.is_failure:
        claim.send_nothing()
    return result


def _stream(held: HeldRequest, response: HttpResponseBase) -> HttpResponseBase:
    gate = AnswerGate(response.status_code, response.items(), held.guarded.rules.max_response)
    close = cast("Callable[[], None]", response.close)  # it also closes the content
    if not response.is_async:
        stream = Sending(held, gate, iter(response.streaming_content), close)
        return _with_content(response, stream, stream.close)
    sending = SendingAsync(held, gate, response.streaming_content)

    def drain_and_close() -> None:
        try:
            if not held.is_over:
                async_to_sync(sending.drain)()
        finally:
            close()

    return _with_content(response, sending, drain_and_close)


def _with_content(
    response: HttpResponseBase, content: Sending | SendingAsync, close: Callable[[], None]
) -> HttpResponseBase:
    response.streaming_content = content
    response.close = close  # instead of the content's own, which would end it early
    if getattr(response, "file_to_stream", None) is not None:
        response.file_to_stream = None  # else the server sends the file itself
    return response
