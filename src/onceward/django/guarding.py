"""Decorators for a project's handlers: ``atomic`` commits a record with its effect, ``idempotent`` answers a view's request once."""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import ParamSpec, TypeVar, Unpack, overload

from django.db import connections, transaction
from django.http import HttpResponseBase

from onceward.claim.held import current
from onceward.core.policy import Options
from onceward.http.rules import Rules
from onceward.stores.capabilities import TRANSACTION
from onceward.web.django import View, answer
from onceward.web.django import idempotent as _idempotent
from onceward.web.django_project import STORE, alias, given, project_once

P = ParamSpec("P")
R = TypeVar("R")


@overload
def atomic(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def atomic(*, using: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def atomic(function: Callable[P, R] | None = None, /, *, using: str | None = None) -> object:
    """Run a guarded function in a ``transaction.atomic`` in which its record commits, too: both, or neither.

    Put it under the decorator that guards: ``@once(key="order.id")``, ``@idempotent(...)``, or ``@exactly(once, ...)`` of Celery.
    If the function raises, what it wrote is rolled back, and the guard handles the error.

    Args:
        function: the handler or view; not a coroutine function, because Django has no asynchronous transactions.
        using: the alias of the ledger's database; None is the one in the settings.

    Returns:
        The function. Before anything runs it raises ``OncewardError`` without a guard around it, and ``ValueError`` in an open
        transaction or for another database than the ledger's.

    Raises:
        TypeError: it is a coroutine function.
    """
    if function is None:
        return lambda function: atomic(function) if using is None else _joined(function, using)
    return _joined(function, None)


def _joined(function: Callable[P, R], using: str | None) -> Callable[P, R]:
    if iscoroutinefunction(function):
        raise TypeError(
            f"@atomic: {function.__qualname__}() is a coroutine function, and Django has no asynchronous transactions. Put it "
            "on a function with def"
        )

    @wraps(function)
    def joined(*args: P.args, **kwargs: P.kwargs) -> R:
        if "once" not in given() and TRANSACTION.of(STORE.store()) is None:  # it is in memory, in a test
            with transaction.atomic(using or alias()):
                return function(*args, **kwargs)
        with current().transaction(connections[using or alias()]) as ours:
            value = function(*args, **kwargs)
            ours.result = answer(value) if isinstance(value, HttpResponseBase) else value
        return value

    return joined


def idempotent(
    rules: Rules | None = None,
    *,
    name: str | None = None,
    wait: float | None = None,
    **options: Unpack[Options],
) -> Callable[[View], View]:
    """Make a view answer once for each Idempotency-Key: :func:`onceward.web.django.idempotent` with the project's ledger.

    For Django Ninja, write ``@decorate_view(idempotent(...))`` under the operation's decorator, or ``@decorate_view(atomic, idempotent(...))``.

    Args:
        rules: which requests carry a key, whose it is, and how they are answered.
        name: the namespace of the keys; each service on the ledger needs its own.
        wait: seconds a request waits for the answer to an earlier one; without it, it gets a 409 at once.
        **options: see :class:`onceward.Policy`.

    Raises:
        TypeError, ValueError: an option is not valid.
        ImproperlyConfigured: the settings are not.
    """
    return _idempotent(project_once(), rules, name=name, wait=wait, **options)
