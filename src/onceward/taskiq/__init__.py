"""Taskiq: tasks that take effect once, although brokers and retries deliver them again."""

from onceward.taskiq.exactly import exactly

__all__ = ["exactly"]
