"""Decorators for a project's handlers: ``atomic`` commits a record with its effect, ``idempotent`` answers a view's request once."""

from collections.abc import Callable
from functools import partial, wraps
from inspect import getclosurevars, iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponseBase
from django.urls import ResolverMatch

from onceward.claim.called import refuse_not_begun
from onceward.claim.held import HeldClaim, innermost
from onceward.errors import OncewardError
from onceward.http.route import WebOptions
from onceward.http.rules import Rules
from onceward.stores.capabilities import TRANSACTION
from onceward.web.django import View
from onceward.web.django import idempotent as _idempotent
from onceward.web.django_exchange import outcome
from onceward.web.django_project import STORE, alias, configuration, project_once

P = ParamSpec("P")
R = TypeVar("R")


@overload
def atomic(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def atomic(*, using: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def atomic(function: Callable[P, R] | None = None, /, *, using: str | None = None) -> object:
    """Run a guarded function in a ``transaction.atomic`` in which its record commits, too: both, or neither.

    Put it under the decorator that guards: ``@once(key="order.id")``, ``@idempotent(...)``, or ``@exactly(once, ...)`` of Celery.
    When the function returns, its key is completed. So in a function that a guarded one calls, use Django's
    ``transaction.atomic``. If the function raises, its writes are rolled back, and the guard handles the error. They are also
    rolled back if a view's answer is not recorded, such as a 503.

    Args:
        function: the handler or view; not a coroutine function, because Django has no asynchronous transactions.
        using: the alias of the ledger's database; None is the one in the settings. What is written to others commits by itself.

    Returns:
        The function. Before anything runs it raises ``OncewardError`` without a guard of its own, and ``ValueError`` in an open
        transaction or for another database than the ledger's.

    Raises:
        TypeError: it is a coroutine function.
    """
    if function is None:
        return lambda function: _join(function, using)
    return _join(function, using)


def _join(function: Callable[P, R], using: str | None) -> Callable[P, R]:
    if iscoroutinefunction(function):
        raise TypeError(
            f"@atomic: {function.__qualname__}() is a coroutine function, and Django has no asynchronous transactions. Put it "
            "on a function with def"
        )

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        claim = _own_claim(wrapper, args)
        in_memory = "once" not in configuration() and TRANSACTION.of(STORE.store()) is None  # in a test
        database = using or alias()
        result: object = None
        try:
            with transaction.atomic(database) if in_memory else claim.transaction(connections[database]) as ours:
                value = result = function(*args, **kwargs)
                refuse_not_begun(function, value)  # the guard sees it after the COMMIT
                if isinstance(value, HttpResponseBase):
                    result = outcome(claim, _finalized(value, args))
                    if isinstance(result, Exception):
                        raise result
                if ours is not None:
                    ours.result = result
        except Exception as error:
            if error is not result:
                raise
        return value  # of a response that is not recorded, the face gives the key back

    return wrapper


def _finalized(response: HttpResponseBase, args: tuple[Any, ...]) -> HttpResponseBase:
    """Return a response that can be rendered. In a view of Django REST framework, its request leads to what prepares one."""
    for request in args:
        if view := (getattr(request, "parser_context", None) or {}).get("view"):
            return cast("HttpResponseBase", view.finalize_response(request, response, *view.args, **view.kwargs))
    return response


def _own_claim(function: Callable[..., object], args: tuple[Any, ...]) -> HeldClaim:
    """Return the current claim, if it guards this very function; another's must not complete before its own function ends."""
    claim, own = innermost(), _innermost(function)
    if claim is not None:
        if _innermost(claim.function) is own:
            return claim
        requests = (each for each in args if isinstance(getattr(each, "resolver_match", None), ResolverMatch))
        for request in requests:
            if _innermost(_endpoint(claim.function or request.resolver_match.func, request)) is own:
                return claim
    raise OncewardError(
        f"@atomic: no guard calls {getattr(function, '__qualname__', function)}(), which has not run. Put @atomic right under @once(...), "
        "@idempotent(...) or @exactly(...). On a function that a guarded one calls, put Django's @transaction.atomic"
    )


def _innermost(function: Any) -> object:
    while inner := (
        getattr(function, "__wrapped__", None)
        or getattr(function, "__func__", None)
        or (function.func if isinstance(function, partial) else None)
    ):
        function = inner
    return function


def _endpoint(view: Any, request: HttpRequest) -> object:
    """Return the function of a view, or the method of a class-based one or of its dispatch, that answers a request."""
    place = getattr(getattr(view, "func", None), "__self__", None)
    place = place or getattr(view, "view_class", None) or getattr(view, "cls", None)
    actions = getattr(view, "actions", None) or getattr(place, "action_map", None) or {}
    method = (request.method or "").lower()
    endpoint = getattr(place, actions.get(method, method), view)
    if (
        getattr(endpoint, "__module__", "") == "rest_framework.decorators"
    ):  # @api_view calls the function by its closure
        return getclosurevars(endpoint).nonlocals.get("func")
    return endpoint


def idempotent(
    rules: Rules | None = None,
    **options: Unpack[WebOptions],
) -> Callable[[View], View]:
    """Make a view answer once for each Idempotency-Key: :func:`onceward.web.django.idempotent` with the project's ledger.

    For Django Ninja, write ``@decorate_view(idempotent(...))`` under the operation's decorator, or ``@decorate_view(atomic, idempotent(...))``.

    Args:
        rules: which requests carry a key, whose it is, and how they are answered.
        **options: see :class:`onceward.Policy`.

    Raises:
        TypeError, ValueError: an option is not valid.
        ImproperlyConfigured: the project's settings are not valid.
    """
    return _idempotent(project_once(), rules, **options)
