"""Dramatiq: actors that take effect once, although brokers and retries deliver their messages again."""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.dramatiq.exactly import exactly

__all__ = ["exactly"]

__getattr__, __dir__ = lazily(__name__, {".exactly": ("exactly",)})
