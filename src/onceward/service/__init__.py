"""A ledger for programs in any language: ``onceward serve``, or :func:`service` to mount it.

The client claims a key over HTTP, does the work, and completes the key. ``claims.py`` runs the generators of ``core/`` for it, and
decides nothing. An instance remembers nothing that matters: any number of them share one ledger.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.service.app import service

__all__ = ["service"]

__getattr__, __dir__ = lazily(__name__, {".app": ("service",)}, needs=("starlette", "uvicorn"))
