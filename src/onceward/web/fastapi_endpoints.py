"""FastAPI's endpoints: their dependencies, which of these end too late, and whether an endpoint began."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from fastapi.dependencies.models import Dependant

from onceward.web.asgi_delivery import BEGAN
from onceward.web.asgi_messages import Scope

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

# Endpoints with a warning. Older versions of FastAPI make a new route where its router is included.
_WARNED: Final[WeakSet[Callable[..., Any]]] = WeakSet()
_TO_USER: Final = 5  # frames from a warning to the line with the endpoint's decorator


def dependencies(dependant: Dependant) -> Iterator[Dependant]:
    """Return all dependencies of an endpoint, those of the router first."""
    for one in dependant.dependencies:
        yield from dependencies(one)
        yield one


def warn_of_late_ends(route: "APIRoute") -> None:
    """Warn of dependencies that end after the answer (FastAPI's docs, "Dependencies with yield", scope)."""
    late = [
        getattr(one.call, "__name__", type(one.call).__name__)
        for one in dependencies(route.dependant)
        if getattr(one, "scope", "function") != "function" and _is_generator(one.call)  # FastAPI 0.121 and later
    ]
    if late and _is_first(route.endpoint):
        names = ", ".join(dict.fromkeys(late))
        warnings.warn(
            f"{route.path}: {names} ends after the answer is recorded and sent. If it fails then, as in a commit, the effect is "
            f'lost: a retry gets that answer. Commit in the endpoint, or declare it as Depends({late[0]}, scope="function")',
            UserWarning,
            stacklevel=_TO_USER,
        )


def _is_generator(call: Callable[..., Any] | None) -> bool:
    forms = () if call is None else (inspect.unwrap(call), type(call).__call__)
    return any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in forms)


def _is_first(endpoint: Callable[..., Any]) -> bool:
    try:
        known = endpoint in _WARNED
        _WARNED.add(endpoint)
    except TypeError:  # not hashable, or without weak references
        return True
    return not known


_EMPTY: Final = CellType()
# The scope of a request whose key is held. Its endpoint notes there that it has begun.
ENDPOINT: Final[ContextVar[Scope | None]] = ContextVar("onceward_fastapi_endpoint", default=None)


class Mark(NamedTuple):
    """Where an endpoint notes that it has begun."""

    dependant: Dependant | None  # FastAPI calls the endpoint through it; None if it was not found
    call: Callable[..., Any] | None = None  # the function that notes it

    @property
    def holds(self) -> bool:
        """Whether an endpoint without a note has not begun. This is unknown if something else has replaced the call."""
        return self.dependant is not None and self.dependant.call is self.call


def mark_begin(handler: Callable[..., Any]) -> Mark:
    """Make the endpoint of a FastAPI handler note when it begins: after authentication and validation.

    FastAPI lets integrations wrap ``dependant.call`` when the handler is made. It unwraps to find the kind of function.
    """
    dependant = _dependant_of(handler)
    if dependant is None:
        return Mark(None)
    call = dependant.call
    assert call is not None  # an endpoint's always has one

    @wraps(call)
    def begun(*args: Any, **kwargs: Any) -> Any:
        scope = ENDPOINT.get()
        if scope is not None:
            scope[BEGAN] = True
        return call(*args, **kwargs)

    dependant.call = begun
    return Mark(dependant, begun)


def _dependant_of(handler: object, depth: int = 5) -> Dependant | None:
    """Return the dependant of a handler's endpoint, also if an integration has wrapped the handler."""
    held = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or () if cell != _EMPTY]
    found = next((value for value in held if isinstance(value, Dependant)), None)
    inner = (value for value in held if isinstance(value, FunctionType)) if depth else ()
    return found or next(filter(None, (_dependant_of(value, depth - 1) for value in inner)), None)
