"""Idempotency-Key for any HTTP application: a proxy in front of it, with the rules of the middleware (``http/``, ``web/asgi.py``)."""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.proxy.app import Proxy

__all__ = ["Proxy"]

__getattr__, __dir__ = lazily(__name__, {".app": ("Proxy",)}, needs=("h11",))
