"""Who sends the requests: credentials from the environment, or else from wherever botocore finds them.

The order is botocore's: a profile that the caller names wins; then AWS_ACCESS_KEY_ID and its companions; then AWS_PROFILE
or the default profile with all that a profile may say (keys, SSO, an assumed role, a process), a container's role, and
the instance's role. botocore is imported only when the environment holds no keys.
"""

import math
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, cast

from onceward.core.clock import Clock, boottime
from onceward.errors import StoreError

CHECKED: Final = 10.0  # seconds between two looks at whether credentials end soon; botocore renews 10 minutes before
ENOUGH: Final = 60.0  # seconds that credentials must last to be used while others are being fetched
SETTLED: Final = 1.0  # seconds in which requests signed before a renewal are still being refused


class Credentials(NamedTuple):
    """An access key, its secret, and the session token of a temporary one. Only the access key's id is ever shown."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


class Chain(Protocol):
    """What botocore found. Credentials that end have a method ``refresh_needed``, too."""

    def get_frozen_credentials(self) -> Credentials:
        """Return all parts of one set, renewed if need be."""


class CredentialSource:
    """Credentials, renewed before they end. One source may serve any number of wires and threads.

    Args:
        profile: a profile of the AWS configuration to use whatever the environment says; None asks the environment first.
        clock: seconds; for tests.
    """

    def __init__(self, profile: str | None = None, *, clock: Clock = boottime) -> None:
        self._profile = profile
        self._clock = clock
        self._held: Credentials | None = None
        self._got_at = self._look_at = -math.inf
        self._chain: Chain | None = None
        self._lock = threading.RLock()  # a signal handler may call where it interrupts this very thread
        self._renewing = False
        _SOURCES.add(self)

    def at_hand(self) -> Credentials | None:
        """Return credentials if that takes no I/O, or None: then :meth:`ask`.

        Raises:
            StoreError: what the environment says is not whole; not transient.
        """
        if (found := self._fresh()) is not None:
            return found
        # While somebody renews them, those that last for a while yet are good enough.
        held, chain = self._held, self._chain
        if held is not None and chain is not None and self._renewing and not _ends_soon(chain, ENOUGH):
            return held
        return None

    def ask(self) -> Credentials:
        """Return credentials, new ones if need be. This may wait for files, a browser's sign-in or the network.

        Raises:
            StoreError: there are none (not transient), or they could not be renewed (transient).
        """
        with self._lock:
            if (found := self._fresh()) is not None:
                return found
            self._renewing = True
            try:
                self._chain = chain = self._chain or _chain(self._profile)
                frozen = chain.get_frozen_credentials()
            except StoreError:
                raise
            except Exception as error:
                self._chain = None
                raise StoreError(
                    f"the AWS credentials could not be got: {error}", transient=self._held is not None
                ) from error
            finally:
                self._renewing = False
            found = _checked(Credentials(frozen.access_key, frozen.secret_key, frozen.token), "the AWS configuration")
            return self._hold(found, self._clock() + CHECKED if hasattr(chain, "refresh_needed") else math.inf)

    def expire(self) -> bool:
        """Forget these credentials, because the service says that they have expired: the next request gets new ones.

        Returns:
            True: another try may help. Many requests may be refused at once; only the first of them does anything here.
        """
        if self._clock() >= self._got_at + SETTLED:
            self._look_at = -math.inf
            self._chain = None  # with it goes what it had cached
            self._got_at = self._clock()
        return True

    def _fresh(self) -> Credentials | None:
        now = self._clock()
        if self._held is not None and now < self._look_at:
            return self._held
        if self._profile is None and (found := from_environment(os.environ)) is not None:
            return self._hold(found, math.inf)  # until they are refused: nobody can say when they end
        held, chain = self._held, self._chain
        if held is not None and chain is not None and not _ends_soon(chain):
            return self._hold(held, now + CHECKED)
        return None

    def _hold(self, found: Credentials, until: float) -> Credentials:
        if self._held != found:  # signers know credentials by identity, so that equal ones stay the same object
            self._held = found
            self._got_at = self._clock()
        self._look_at = until
        return self._held

    def start_anew(self) -> None:
        """In a forked child: whoever held a lock, ours or botocore's, has stayed behind in the parent."""
        self._lock, self._renewing = threading.RLock(), False
        if self._chain is not None and hasattr(self._chain, "refresh_needed"):
            self._chain = None
            self._look_at = -math.inf


def from_environment(environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials that environment variables hold, or None.

    Raises:
        StoreError: there is an access key without its secret; not transient.
    """
    access_key = environ.get("AWS_ACCESS_KEY_ID")
    if not access_key:
        return None
    secret_key = environ.get("AWS_SECRET_ACCESS_KEY")
    if not secret_key:
        raise StoreError("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both, or neither")
    token = environ.get("AWS_SESSION_TOKEN") or environ.get("AWS_SECURITY_TOKEN")
    return _checked(Credentials(access_key, secret_key, token or None), "the environment")


def find_region(region: str | None = None, profile: str | None = None) -> str:
    """Return the region: the one given, or AWS_REGION, AWS_DEFAULT_REGION, or that of the profile.

    Raises:
        StoreError: there is none, or it is not the name of one; not transient.
    """
    found = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not found:
        try:
            found = cast("str | None", _session(profile).get_config_variable("region"))
        except ImportError:  # without botocore nobody reads the profile
            found = None
        except Exception as error:
            raise StoreError(f"the AWS configuration could not be read: {error}") from error
    if not found:
        raise StoreError("which AWS region? Give region=, set AWS_REGION, or write it into the profile")
    if not found.replace("-", "").isalnum() or not found.isascii():
        raise StoreError(f"{found!r} is not the name of an AWS region, such as eu-west-1")
    return found


_SOURCES: weakref.WeakSet[CredentialSource] = weakref.WeakSet()


def _forked() -> None:
    for source in list(_SOURCES):
        source.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _ends_soon(chain: Chain, within: float | None = None) -> bool:
    """Ask botocore's credentials, of which only those that end at all can tell; the default is botocore's 15 minutes."""
    return hasattr(chain, "refresh_needed") and bool(chain.refresh_needed(within))


def _chain(profile: str | None) -> Chain:
    try:
        found: Chain | None = _session(profile).get_credentials()
    except ImportError as error:
        raise StoreError(
            "no AWS credentials in the environment: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `pip install "
            "botocore`, which finds them in profiles, SSO, containers and instances"
        ) from error
    if found is None:
        raise StoreError(
            "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with AWS_PROFILE (after "
            "`aws configure` or `aws sso login`), or give this machine a role"
        )
    return found


def _session(profile: str | None) -> Any:
    # botocore has no annotations
    from botocore.session import Session  # type: ignore[import-untyped]

    return Session(profile=profile)


def _checked(found: Credentials, place: str) -> Credentials:
    """They are written into headers: a line end in one of them, as files leave it, would end the header."""
    for name, value in zip(found._fields, found, strict=True):
        if value is not None and not (value.isascii() and value.isprintable() and " " not in value):
            raise StoreError(f"the {name} in {place} holds a space, a line end or another character that no key has")
    return found
