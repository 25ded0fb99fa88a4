"""A ledger in the browser: ``onceward dashboard --store URL``, or :func:`dashboard` to mount it in an application.

Pages are made on the server, and nothing is loaded from elsewhere. ``access.py`` says who may do what, ``shield.py`` guards
each request, ``pages.py`` reads, ``actions.py`` changes, and ``audit.py`` records who did it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.dashboard.app import dashboard

__all__ = ["dashboard"]
_NEEDED = ("starlette", "jinja2", "uvicorn")


def __getattr__(name: str) -> object:
    if name != "dashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from onceward.dashboard.app import dashboard
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise ImportError(
            "the dashboard needs Starlette, Jinja2 and uvicorn: pip install 'onceward[dashboard]'"
        ) from error
    return dashboard
