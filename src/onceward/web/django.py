"""The Idempotency-Key header for Django: a middleware for a site and a decorator for single views, under WSGI and ASGI.

Either form has two halves: what is done before and after the view is called, and the same awaited.
"""

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Final, TypeVar, Unpack, cast

try:
    import django  # type: ignore[import-untyped]  # noqa: F401 - it is what is wanted; Django has no types
except ModuleNotFoundError as error:
    raise ImportError("onceward.web.django needs django, which is not installed: pip install django") from error
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings  # type: ignore[import-untyped]  # Django has no types
from django.core.exceptions import (  # type: ignore[import-untyped]  # as above
    BadRequest,
    ImproperlyConfigured,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    SynchronousOnlyOperation,
)
from django.core.handlers.exception import response_for_exception  # type: ignore[import-untyped]  # as above
from django.db import connections, transaction  # type: ignore[import-untyped]  # as above
from django.http import Http404, HttpRequest, HttpResponseBase  # type: ignore[import-untyped]  # as above
from django.http.multipartparser import MultiPartParserError  # type: ignore[import-untyped]  # as above
from django.http.request import RawPostDataException  # type: ignore[import-untyped]  # as above

from onceward.core.policy import Options
from onceward.http.answer import Answer
from onceward.http.body import LONG
from onceward.http.coverage import djangos_routes
from onceward.http.endpoint import endpoint_rules
from onceward.http.guarded import Guarded
from onceward.http.request import Request
from onceward.http.rules import Ask, Passed, Pending, Rules
from onceward.once import check_once
from onceward.web.django_response import answer, ended, ended_async, response_of
from onceward.web.environ import request_of
from onceward.web.sending import claim
from onceward.web.sending_async import claim_async, to_its_end

if TYPE_CHECKING:
    from onceward.once import Once

__all__ = ["IdempotencyMiddleware", "answer", "idempotent"]

View = TypeVar("View", bound=Callable[..., object])
Respond = Callable[[], HttpResponseBase]
RespondAsync = Callable[[], Awaitable[HttpResponseBase]]
# What Django answers with a status of 4xx (its docs, "Error views"); all other exceptions are errors of the server.
_ANSWERED: Final = (Http404, PermissionDenied, MultiPartParserError, BadRequest, SuspiciousOperation)


class IdempotencyMiddleware:
    """Middleware that makes a site answer once for each idempotency key, under WSGI and under ASGI.

    Put it into ``MIDDLEWARE`` after what says who the caller is, such as ``AuthenticationMiddleware``, and say in the settings
    what it does::

        ONCEWARD = {
            "once": Once("dynamodb://orders?region=eu-west-1"),
            "rules": Rules(Route("/orders"), scope=lambda request: request.native["request"].user.pk),
            "wait": 5,
        }

    "once" is the ledger; the others are optional: "rules", "name" and "wait" as for :class:`onceward.web.WsgiIdempotency`, and
    the options of :class:`onceward.Policy`. A ``scope`` finds the ``HttpRequest`` in ``request.native["request"]``.

    Args:
        get_response: what Django gives it.

    Raises:
        ImproperlyConfigured: ``ONCEWARD`` is missing or not valid.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], object]) -> None:
        self._get_response = get_response
        self._guarded = _configured(getattr(settings, "ONCEWARD", None))
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> object:
        """Answer one request, or return what is awaited for that."""
        respond = partial(self._get_response, request)
        if self._is_async:
            return _answered_async(self._guarded, request, cast("RespondAsync", respond), began=None)
        return _answered(self._guarded, request, cast("Respond", respond), began=None)


def idempotent(
    once: "Once",
    rules: Rules | None = None,
    *,
    name: str | None = None,
    wait: float | None = None,
    **options: Unpack[Options],
) -> Callable[[View], View]:
    """Make a view, or coroutine view, answer once for each idempotency key.

    Put it next to the function, under what says who the caller is; on a class, write
    ``@method_decorator(idempotent(once), name="dispatch")``. What Django answers with a status of 4xx when the view raises it,
    such as Http404 and PermissionDenied, is recorded as that answer; every other exception gives the key back. With ``ATOMIC_REQUESTS`` the view's transaction is committed
    before its answer is recorded. Other middleware sees replays as it sees answers.

    ``onceward.current()`` returns the claim in the view, which may complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` are all POST and PATCH.
            Their routes have no path, for that is the view's: ``Rules(Route(required=False), scope=...)``. A ``scope`` finds the
            ``HttpRequest`` in ``request.native["request"]``.
        name: the namespace of the keys, another one for each service that shares the ledger. It is required, unless ``once`` has one.
        wait: seconds for which a request waits for the answer to the one before it; without it, it gets a 409 at once.
        **options: see :class:`onceward.Policy`; ``cache`` means nothing here.

    Returns:
        A decorator. The view raises ImproperlyConfigured, before anything has run, when the request's body was read before.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    check_once(once, "@idempotent({})")
    guarded = Guarded(once, endpoint_rules(rules), name, wait, options)

    def decorate(view: View) -> View:
        wrapper: Callable[..., object]
        began = None if _is_class(view) else True
        if iscoroutinefunction(view) or _is_async_dispatch(view):

            @wraps(view)
            async def answered_async(request: HttpRequest, *args: object, **kwargs: object) -> object:
                respond = cast("RespondAsync", partial(view, request, *args, **kwargs))
                return await _answered_async(guarded, request, respond, began=began)

            wrapper = answered_async
        else:
            around = _Atomic(getattr(view, "_non_atomic_requests", ()))

            @wraps(view)
            def answered(request: HttpRequest, *args: object, **kwargs: object) -> object:
                called = around.view(view)
                respond = cast("Respond", partial(called, request, *args, **kwargs))
                return _answered(guarded, request, respond, began=began)

            answered._non_atomic_requests = around  # type: ignore[attr-defined]  # noqa: SLF001 - what Django looks for
            wrapper = answered
        return cast("View", wrapper)

    return decorate


def _is_class(view: object) -> bool:
    """Tell whether it is a class of views or its dispatch, where mixins and Django REST framework refuse callers first."""
    return getattr(view, "__name__", "") == "dispatch" or hasattr(view, "view_class") or hasattr(view, "cls")


def _began(request: HttpRequest, response: HttpResponseBase) -> bool | None:
    """Tell whether the view began, after the middleware: not where none was found. Otherwise nobody can tell."""
    return False if request.resolver_match is None and response.status_code >= 300 else None


def _is_async_dispatch(view: object) -> bool:
    """Tell whether it is the dispatch of a class of coroutine views, as ``method_decorator`` hands it over for each request."""
    bound = getattr(view, "func", None)
    return getattr(getattr(bound, "__self__", None), "view_is_async", False) is True


def _answered(guarded: Guarded, request: HttpRequest, respond: Respond, *, began: bool | None) -> HttpResponseBase:
    asked = _ask(guarded, request)
    if asked is None:
        return respond()
    if isinstance(asked, Answer):
        return response_of(asked)
    if isinstance(asked, Passed):
        with asked:
            response = _responded(request, respond)
        asked.answered(response.status_code)
        return response
    _refuse_transaction()
    held = claim(guarded, asked)
    if isinstance(held, Answer):
        return response_of(held)
    held.began = began
    response = held.call(lambda: _responded(request, respond))
    held.began = began if began is not None else _began(request, response)
    return ended(held, response, guarded.rules.max_response, joined=hasattr(request, "scope"))


async def _answered_async(
    guarded: Guarded, request: HttpRequest, respond: RespondAsync, *, began: bool | None
) -> HttpResponseBase:
    asked = await _ask_async(guarded, request)
    if asked is None:
        return await respond()
    if isinstance(asked, Answer):
        return response_of(asked)
    if isinstance(asked, Passed):
        with asked:
            response = await _responded_async(request, respond)
        asked.answered(response.status_code)
        return response
    # Django cancels what is under way when the client leaves.
    return await to_its_end(_handled_async(guarded, asked, request, respond, began=began), _left)


async def _handled_async(
    guarded: Guarded, asked: Ask, request: HttpRequest, respond: RespondAsync, *, began: bool | None
) -> HttpResponseBase:
    held = await claim_async(guarded, asked)
    if isinstance(held, Answer):
        return response_of(held)
    held.began = began
    response = await held.call(lambda: _responded_async(request, respond))
    held.began = began if began is not None else _began(request, response)
    return await ended_async(held, response, guarded.rules.max_response)


async def _left(response: HttpResponseBase) -> None:
    """Have a response that nobody takes made to its end."""
    if response.streaming:
        await sync_to_async(response.close)()


def _responded(request: HttpRequest, respond: Respond) -> HttpResponseBase:
    """Return the response of a view, or what Django makes of its exception."""
    try:
        return _rendered(respond())
    except _ANSWERED as error:
        return response_for_exception(request, error)


async def _responded_async(request: HttpRequest, respond: RespondAsync) -> HttpResponseBase:
    try:
        return _rendered(await respond())
    except _ANSWERED as error:
        return await sync_to_async(response_for_exception, thread_sensitive=False)(request, error)


def _rendered(response: HttpResponseBase) -> HttpResponseBase:
    """Return a response that can be recorded; that of a template is made only when it is rendered."""
    if not isinstance(response, HttpResponseBase):
        if callable(close := getattr(response, "close", None)):
            close()  # a coroutine that nobody is going to await
        raise TypeError(f"the view returned {type(response).__name__}, which is no HttpResponse")
    render = getattr(response, "render", None)
    return cast("HttpResponseBase", render()) if callable(render) else response


# --- requests -------------------------------------------------------------------------------------------------------


def _ask(guarded: Guarded, request: HttpRequest) -> Ask | Passed | Answer | None:
    pending = _begun(guarded, request)
    return _asked(guarded, request, pending) if isinstance(pending, Pending) else pending


async def _ask_async(guarded: Guarded, request: HttpRequest) -> Ask | Passed | Answer | None:
    try:
        pending = _begun(guarded, request)
    except SynchronousOnlyOperation:  # a scope that asks the database
        pending = await sync_to_async(_begun)(guarded, request)
    if not isinstance(pending, Pending):
        return pending
    if len(request.body) <= LONG:
        return _asked(guarded, request, pending)
    return await sync_to_async(_asked, thread_sensitive=False)(guarded, request, pending)


def _begun(guarded: Guarded, request: HttpRequest) -> Pending | Passed | Answer | None:
    """Return what the rules make of a request before its body is compared; the body is read and complete."""
    if request.method not in guarded.methods:
        return None
    if not guarded.coverage.looked:
        guarded.coverage.look(djangos_routes)
    pending = guarded.rules.begin(_request(request))
    if not isinstance(pending, Pending):
        return pending
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdecimal()):
        return guarded.rules.unreadable("its Content-Length is no number")
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        return guarded.rules.too_large()
    except RawPostDataException as error:
        raise ImproperlyConfigured(
            "the request's body was read before its idempotency key could be looked at, and not kept: put IdempotencyMiddleware "
            "before what reads it, or have it read with request.body; nothing has run"
        ) from error
    if len(body) < int(length):
        return guarded.rules.unreadable(f"it has {len(body)} bytes, and its Content-Length is {length}")
    return pending


def _asked(guarded: Guarded, request: HttpRequest, pending: Pending) -> Ask | Answer | None:
    return _labelled(guarded.rules.ask(pending, request.body), request)


def _labelled(asked: Ask | Answer | None, request: HttpRequest) -> Ask | Answer | None:
    """Name the route as the URLconf has it, once that was looked at."""
    if isinstance(asked, Ask) and request.resolver_match is not None:
        return asked._replace(route=f"{request.method} /{request.resolver_match.route}")
    return asked


def _request(request: HttpRequest) -> Request:
    found = request_of(request.META, {"request": request})
    # Under ASGI the paths of META are not in the guise that WSGI gives them.
    found.path, found.root = request.path_info, request.path.removesuffix(request.path_info).rstrip("/")
    return found


# --- settings and transactions --------------------------------------------------------------------------------------


def _configured(given: object) -> Guarded:
    if not isinstance(given, dict) or "once" not in given:
        raise ImproperlyConfigured(
            'settings.ONCEWARD is missing: give a dict, as in ONCEWARD = {"once": Once("sqlite:///orders.db")}'
        )
    options = dict(given)
    try:
        return Guarded(
            options.pop("once"),
            options.pop("rules", None),
            options.pop("name", None),
            options.pop("wait", None),
            cast("Options", options),
            'ONCEWARD = {{"once": {}}}',
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ImproperlyConfigured(f"settings.ONCEWARD: {error}") from error


def _refuse_transaction() -> None:
    """Raise ImproperlyConfigured in a transaction: it would be committed after the answer to it is recorded."""
    for connection in connections.all(initialized_only=True):
        # those of Django's TestCase are rolled back, whatever happens
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            raise ImproperlyConfigured(
                f"a transaction on the database {connection.alias!r} is open around what takes effect once, and its end would "
                "come after the record. Put @idempotent around @transaction.atomic, and with ATOMIC_REQUESTS on the "
                "dispatch of a class-based view; nothing has run"
            )


class _Atomic(set[str]):
    """Keeps Django from opening the transaction of ATOMIC_REQUESTS around a guarded view, and opens it inside.

    Otherwise the answer would be recorded before the effect is committed. What is in the set are the databases for which the
    view has asked for none.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def view(self, view: View) -> View:
        """Return the view within the transactions that it is to have."""
        asked_for_none = set(self)
        for alias, database in connections.settings.items():
            if database["ATOMIC_REQUESTS"] and alias not in asked_for_none:
                view = transaction.atomic(using=alias)(view)
        return view
