"""A ledger for programs in any language: ``onceward serve``, or :func:`service` to mount it.

The client claims a key over HTTP, does the work, and completes the key. ``claims.py`` runs the generators of ``core/`` for it, and
decides nothing. An instance remembers nothing that matters: any number of them share one ledger.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.service.app import service

__all__ = ["service"]
_NEEDED = ("starlette", "uvicorn")


def __getattr__(name: str) -> object:
    if name != "service":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from onceward.service.app import service
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise ImportError("the service needs Starlette and uvicorn: pip install 'onceward[service]'") from error
    return service
