"""User code under a claim: which one it runs under. Only this file sets that."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

from onceward.errors import OncewardError

if TYPE_CHECKING:
    from onceward.claim.claim import Claim
    from onceward.claim.held import HeldClaim

CURRENT: ContextVar["HeldClaim | None"] = ContextVar("onceward_claim", default=None)


def current() -> "Claim":
    """Return the claim of the handler that is running here.

    Raises:
        OncewardError: no guarded handler is running in this context.
    """
    return held()


def held() -> "HeldClaim":
    """As :func:`current`, for adapters: the claim with its inner methods."""
    claim = CURRENT.get()
    if claim is None:
        raise OncewardError("no claim is held here: onceward.current() works inside a guarded handler")
    return claim
