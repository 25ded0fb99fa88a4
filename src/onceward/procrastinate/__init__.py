"""Procrastinate: tasks that take effect once, although retries and rescued jobs run them again."""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.procrastinate.exactly import exactly

__all__ = ["exactly"]

__getattr__, __dir__ = lazily(__name__, {".exactly": ("exactly",)})
