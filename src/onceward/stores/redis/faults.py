"""Redis's errors and their fixes."""

import re
from typing import Final

from redis import exceptions

from onceward.errors import StoreError
from onceward.stores.lanes.refusals import Broken

# What ends by itself, or by a failover. The same request may then succeed.
_TRANSIENT: Final = re.compile(
    r"\b(OOM|READONLY|LOADING|BUSY|MISCONF|CLUSTERDOWN|TRYAGAIN|MASTERDOWN|NOREPLICAS|UNBLOCKED)\b"
)
_TRANSIENT_KINDS: Final = (
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.MasterDownError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    exceptions.AskError,
    exceptions.NoScriptError,
)
_DENIED: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)


def is_refused(error: StoreError) -> bool:
    """Return whether the server refuses a command for good: by the user's rights, or because it has another name there."""
    return not error.transient and isinstance(error.__cause__, exceptions.ResponseError)


def translated(error: Exception, url: str) -> StoreError:
    """Return the error of one request."""
    if isinstance(error, Broken):
        cause = error.__cause__
        if not isinstance(cause, exceptions.RedisError | exceptions.RedisClusterException):
            return StoreError(f"ledger {url}: {error}", transient=True)
        error = cause
    text = str(error)
    if "WAITAOF" in text:
        return StoreError(
            f"ledger {url}: disk=yes needs Redis 7.2 or newer, or Valkey, with appendonly yes, and the right to WAITAOF ({text})"
        )
    if isinstance(error, _DENIED) or "NOPERM" in text:
        return StoreError(
            f"ledger {url}: {text.removesuffix('.')}. docs/reference/redis.md lists the rights that a worker needs"
        )
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in text:
        return StoreError(
            f"ledger {url}: Redis has no memory left, and recorded nothing ({text}): raise maxmemory, or purge",
            transient=True,
        )
    if isinstance(error, exceptions.MovedError | exceptions.ClusterCrossSlotError):
        return StoreError(f"ledger {url}: this server is of a Redis Cluster: add cluster=yes to the URL")
    if isinstance(error, exceptions.ConnectionError) and isinstance(error.__context__, OSError):
        asks = "is the server running, and are host and port in the URL right?"
        return StoreError(f"ledger {url}: {text.removesuffix('.')}: {asks}", transient=True)
    if isinstance(error, (*_TRANSIENT_KINDS, exceptions.ConnectionError, exceptions.TimeoutError)):
        return StoreError(f"ledger {url}: {text}", transient=True)
    if isinstance(error, UnicodeError | exceptions.DataError):
        return StoreError(f"ledger {url}: {error}")
    return StoreError(f"ledger {url}: Redis refused the request ({text})", transient=bool(_TRANSIENT.search(text)))
