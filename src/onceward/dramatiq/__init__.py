"""Dramatiq: actors that take effect once, although brokers and retries deliver their messages again."""

from onceward.dramatiq.exactly import exactly

__all__ = ["exactly"]
