"""Taskiq: tasks that take effect once, although brokers and retries deliver them again."""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.taskiq.exactly import exactly

__all__ = ["exactly"]

__getattr__, __dir__ = lazily(__name__, {".exactly": ("exactly",)})
