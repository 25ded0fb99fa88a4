"""Verified users as scopes: found by the authentication of Starlette, Django or Django REST framework.

Give one to ``Rules(scope=...)``. A request without a user is refused. Making a scope imports no framework.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, cast

from onceward.http.answer import Answer
from onceward.http.request import Request
from onceward.http.scope import Scope, Unscoped

Who = Callable[[Any], object]  # from a framework's user to what identifies it
_PK: Final = attrgetter("pk")


def starlette_user(who: Who | None = None) -> Scope:
    """Return the scope of the user that Starlette's ``AuthenticationMiddleware`` finds.

    That middleware must run first: add it to the application after :class:`onceward.web.AsgiIdempotency`. Without it, each request fails.

    Args:
        who: returns what identifies a user; by default its ``identity``.
    """
    identify = who or attrgetter("identity")

    def user_of(request: Request) -> object:
        return _authenticate(request.native["user"], identify)

    return Scope(user_of)


def django_user(who: Who | None = None) -> Scope:
    """Return the scope of Django's ``request.user``. ``AuthenticationMiddleware`` must run first.

    Args:
        who: returns what identifies a user; by default its primary key.
    """
    identify = who or _PK

    def user_of(request: Request) -> object:
        return _authenticate(cast("Any", request.native["request"]).user, identify)

    return Scope(user_of)


def rest_framework_user(who: Who | None = None) -> Scope:
    """Return the scope of the user that a view of Django REST framework authenticates.

    The framework authenticates inside the view, which is too late for a guard. So this calls the view's authenticators
    first, and the view calls them again. A request that they refuse gets the view's own answer.

    Args:
        who: returns what identifies a user; by default its primary key.
    """
    identify = who or _PK

    def user_of(request: Request) -> object:
        native = cast("Any", request.native["request"])
        from django.urls import Resolver404, resolve
        from rest_framework.exceptions import APIException

        try:
            match = native.resolver_match or resolve(native.path_info, getattr(native, "urlconf", None))
        except Resolver404:
            return Answer(404)  # there is no view
        view = _rest_view(native, match)
        try:
            user = view.request.user  # this authenticates
        except APIException as error:
            return _rest_refusal(view, error)
        if user is None:  # UNAUTHENTICATED_USER can be None
            raise Unscoped("the request has no user")
        return _authenticate(user, identify)

    return Scope(user_of)


def _rest_view(native: Any, match: Any) -> Any:
    """Return the view of a request, as it is before its dispatch."""
    view_class = cast("Any", getattr(match.func, "cls", None))
    if not hasattr(view_class, "initialize_request"):
        raise RuntimeError(
            f"rest_framework_user(): {native.path_info} is not a view of Django REST framework, so nobody knows whose "
            "its idempotency key is. Guard other views with @idempotent and rules of their own. Nothing has run"
        )
    _ = native.body  # this reads and keeps it, because an authenticator may read the form
    view = view_class(**getattr(match.func, "initkwargs", {}))
    view.args, view.kwargs, view.headers = match.args, match.kwargs, {}
    view.action_map = getattr(match.func, "actions", None) or {}  # of a view set
    view.request = view.initialize_request(native, *match.args, **match.kwargs)
    return view


def _rest_refusal(view: Any, error: Exception) -> Answer:
    """Return the view's answer to a request that its authenticators refuse."""
    from onceward.web.django_exchange import answer

    response = view.finalize_response(view.request, view.handle_exception(error), *view.args, **view.kwargs)
    return answer(response.render())


def _authenticate(user: Any, identify: Who) -> object:
    if not user.is_authenticated:
        raise Unscoped("the request has no user")
    return identify(user)
