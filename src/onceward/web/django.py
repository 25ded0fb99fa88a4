"""The Idempotency-Key header for Django: a middleware for a site and a decorator for single views, under WSGI and ASGI."""

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Final, TypeVar, Unpack, cast

try:
    import django  # noqa: F401 - this only checks that it is there
except ModuleNotFoundError as error:
    raise ImportError("onceward.web.django needs django, which is not installed: pip install django") from error
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.core.signals import got_request_exception
from django.http import Http404, HttpRequest, HttpResponseBase
from django.http.multipartparser import MultiPartParserError

from onceward.claim.held import HeldClaim
from onceward.http.answer import Answer
from onceward.http.guarded import Guarded, tell
from onceward.http.held import claim, claim_async
from onceward.http.route import KeyedRequest, WebOptions
from onceward.http.rules import Rules, endpoint_rules
from onceward.once import Once
from onceward.web.django_exchange import STREAMED, answer, ask, ask_async, finish, outcome, response_of
from onceward.web.django_project import project_once
from onceward.web.django_transactions import TransactionInside, refuse_transaction
from onceward.web.sending import to_its_end

__all__ = ["IdempotencyMiddleware", "answer", "idempotent"]

View = TypeVar("View", bound=Callable[..., object])
Respond = Callable[[], HttpResponseBase]
RespondAsync = Callable[[], Awaitable[HttpResponseBase]]
# Django answers these with 4xx (its docs, "Error views"); all other exceptions are server errors.
_ANSWERED: Final = (Http404, PermissionDenied, MultiPartParserError, BadRequest, SuspiciousOperation)


class IdempotencyMiddleware:
    """Middleware that makes a site answer once for each idempotency key, under WSGI and under ASGI.

    Put it into ``MIDDLEWARE`` after the one that finds the caller, such as ``AuthenticationMiddleware``. Configure it in
    the settings::

        ONCEWARD = {
            "once": Once("dynamodb://orders?region=eu-west-1"),
            "rules": Rules(Route("/orders"), scope=lambda request: request.native["request"].user.pk),
            "wait": 5,
        }

    "once" is the ledger; without it, it is the one in the project's "DATABASE" (:mod:`onceward.django`). "rules", "name" and "wait" are as for :class:`onceward.web.WsgiIdempotency`; the options of
    :class:`onceward.Policy` can follow. A ``scope`` finds the ``HttpRequest`` in ``request.native["request"]``.

    Args:
        get_response: Django gives it.

    Raises:
        ImproperlyConfigured: ``ONCEWARD`` is missing or not valid.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], object]) -> None:
        self._get_response = get_response
        self._guarded = _configure(getattr(settings, "ONCEWARD", None))
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> object:
        """Return the answer to one request, or an awaitable for it."""
        respond = partial(self._get_response, request)
        if self._is_async:
            return _answer_async(self._guarded, request, cast("RespondAsync", respond), began=None)
        return _answer(self._guarded, request, cast("Respond", respond), began=None)


def idempotent(
    once: Once,
    rules: Rules | None = None,
    **options: Unpack[WebOptions],
) -> Callable[[View], View]:
    """Make a view, or coroutine view, answer once for each idempotency key.

    Put it below the decorator that finds the caller, and above ``@api_view`` of Django REST framework. On a class, write
    ``@method_decorator(idempotent(once), name="dispatch")``. Exceptions that Django answers with 4xx, such as Http404 and
    PermissionDenied, are recorded as that answer; every other exception gives the key back. With ``ATOMIC_REQUESTS`` the view's
    transaction is committed before its answer is recorded. Other middleware also sees replays.

    In the view, ``onceward.current()`` returns the claim. The view can complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` covers all POST and
            PATCH. Routes have no path, because the view has one: ``Rules(Route(required=False), scope=...)``. A ``scope``
            finds the ``HttpRequest`` in ``request.native["request"]``.
        **options: see :class:`onceward.web.WebOptions`; ``name`` is required unless ``once`` has one.

    Returns:
        A decorator. The view raises ImproperlyConfigured before anything runs, if the request is not Django's ``HttpRequest``, or if
        its body was read and not kept.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    guarded = Guarded(once, rules, options, "@idempotent({})", prepare=endpoint_rules)

    def decorate(view: View) -> View:
        wrapper: Callable[..., object]
        began = None if _is_class(view) else True
        if iscoroutinefunction(view) or _is_async_dispatch(view):

            @wraps(view)
            async def call_async(request: HttpRequest, *args: object, **kwargs: object) -> object:
                respond = cast("RespondAsync", partial(view, request, *args, **kwargs))
                return await _answer_async(guarded, request, respond, view=view, began=began)

            wrapper = call_async
        else:
            around = TransactionInside(getattr(view, "_non_atomic_requests", ()))

            @wraps(view)
            def call(request: HttpRequest, *args: object, **kwargs: object) -> object:
                respond = cast("Respond", partial(view, request, *args, **kwargs))
                if around.aliases:
                    respond = partial(around.call, respond, _complete)
                return _answer(guarded, request, respond, view=view, began=began)

            vars(call)["_non_atomic_requests"] = around  # Django reads it
            wrapper = call
        return cast("View", wrapper)

    return decorate


def _complete(claim: HeldClaim, response: HttpResponseBase) -> None:
    """Complete the claim of a request with a response that will not be sent, if the rules record it."""
    if claim.exchange is not None and not response.streaming:
        recorded = outcome(claim, response)
        if not isinstance(recorded, Exception):
            claim.complete(recorded)


def _is_class(view: object) -> bool:
    """Return whether it is a class-based view or its dispatch. There, mixins and Django REST framework can refuse callers first."""
    return getattr(view, "__name__", "") == "dispatch" or hasattr(view, "view_class") or hasattr(view, "cls")


def _began(request: HttpRequest, response: HttpResponseBase) -> bool | None:
    """Tell, after the middleware, whether the view began: False if no view was found, else None for unknown."""
    return False if request.resolver_match is None and response.status_code >= 300 else None


def _is_async_dispatch(view: object) -> bool:
    """Return whether it is the dispatch of an async class-based view, as ``method_decorator`` passes it for each request."""
    method = getattr(view, "func", None)
    return getattr(getattr(method, "__self__", None), "view_is_async", False) is True


def _answer(
    guarded: Guarded, request: HttpRequest, respond: Respond, *, view: object = None, began: bool | None
) -> HttpResponseBase:
    stage = ask(guarded, request)
    if stage is None:
        return respond()
    if isinstance(stage, Answer):
        return response_of(stage)
    refuse_transaction()
    held = claim(guarded, stage)
    if isinstance(held, Answer):
        return response_of(held)
    held.judge.began, held.claim.function = began, view
    response = held.call(lambda: _respond(request, respond))
    held.judge.began = began if began is not None else _began(request, response)
    return finish(held, request, response, None if response.streaming else held.end(answer(response)))


async def _answer_async(
    guarded: Guarded, request: HttpRequest, respond: RespondAsync, *, view: object = None, began: bool | None
) -> HttpResponseBase:
    stage = await ask_async(guarded, request)
    if stage is None:
        return await respond()
    if isinstance(stage, Answer):
        return response_of(stage)
    await sync_to_async(refuse_transaction)()  # in the thread of the synchronous middleware around
    # Django cancels a running view when the client leaves.
    return await to_its_end(_handle_async(guarded, stage, request, respond, view=view, began=began), _discard)


async def _handle_async(
    guarded: Guarded,
    stage: KeyedRequest,
    request: HttpRequest,
    respond: RespondAsync,
    *,
    view: object,
    began: bool | None,
) -> HttpResponseBase:
    held = await claim_async(guarded, stage)
    if isinstance(held, Answer):
        return response_of(held)
    held.judge.began, held.claim.function = began, view
    response = await held.call_async(lambda: _respond_async(request, respond))
    held.judge.began = began if began is not None else _began(request, response)
    return finish(held, request, response, None if response.streaming else await held.end_async(answer(response)))


def _close(request: HttpRequest | None = None, **_: object) -> None:
    """Record a streamed answer that Django drops, without closing it, because a middleware around has raised."""
    if request is not None and (response := request.META.pop(STREAMED, None)) is not None:
        try:
            response.close()
        except Exception as error:  # the application's own exception goes on
            tell(f"{request.path}: the rest of a streamed answer", error)


got_request_exception.connect(_close)


async def _discard(response: HttpResponseBase) -> None:
    """Make a response to its end, although nobody takes it."""
    if response.streaming:
        await sync_to_async(response.close)()


def _respond(request: HttpRequest, respond: Respond) -> HttpResponseBase:
    """Return the response of a view, or Django's response to its exception."""
    try:
        return _render(respond())
    except _ANSWERED as error:
        return response_for_exception(request, error)


async def _respond_async(request: HttpRequest, respond: RespondAsync) -> HttpResponseBase:
    try:
        return _render(await respond())
    except _ANSWERED as error:
        return await sync_to_async(response_for_exception, thread_sensitive=False)(request, error)


def _render(response: HttpResponseBase) -> HttpResponseBase:
    """Return a response that can be recorded. A template response must be rendered first."""
    if not isinstance(response, HttpResponseBase):
        if callable(close := getattr(response, "close", None)):
            close()  # a coroutine that is never awaited
        raise TypeError(f"the view returned {type(response).__name__}, which is not an HttpResponse")
    render = getattr(response, "render", None)
    return cast("HttpResponseBase", render()) if callable(render) else response


def _configure(setting: object) -> Guarded:
    if not isinstance(setting, dict) or not {"once", "DATABASE"} & setting.keys():
        raise ImproperlyConfigured(
            'settings.ONCEWARD is missing: give a dict, as in ONCEWARD = {"once": Once("sqlite:///orders.db")}, or '
            '{"DATABASE": "default"} with the app onceward.django'
        )
    options = {name: value for name, value in setting.items() if name not in {"DATABASE", "OPTIONS"}}
    once = options.pop("once") if "once" in options else project_once()
    try:
        return Guarded(
            once,
            options.pop("rules", None),
            cast("WebOptions", options),
            'ONCEWARD = {{"once": {}}}',
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ImproperlyConfigured(f"settings.ONCEWARD: {error}") from error
