"""A ledger in the browser: ``onceward dashboard --store URL``, or :func:`dashboard` to mount it in an application.

Pages are made on the server, and nothing is loaded from elsewhere. ``access.py`` says who may do what, ``shield.py`` guards
each request, ``pages.py`` reads, ``actions.py`` changes, and ``audit.py`` records who did it.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.dashboard.app import dashboard

__all__ = ["dashboard"]

__getattr__, __dir__ = lazily(__name__, {".app": ("dashboard",)}, needs=("starlette", "jinja2", "uvicorn"))
