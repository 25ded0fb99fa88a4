"""Idempotency-Key for any HTTP application: a proxy in front of it, with the rules of the middleware (``http/``, ``web/asgi.py``)."""

from onceward.proxy.app import Proxy

__all__ = ["Proxy"]
