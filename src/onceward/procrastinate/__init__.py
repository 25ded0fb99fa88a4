"""Procrastinate: tasks that take effect once, although retries and rescued jobs run them again."""

from onceward.procrastinate.exactly import exactly

__all__ = ["exactly"]
