"""Credentials from the environment, or else from botocore.

The order is botocore's: AWS_ACCESS_KEY_ID and its companions; AWS_PROFILE or the default profile (keys, SSO, an assumed
role, a process); a container's role; the instance's role. botocore is imported only if the environment holds no keys.
"""

import math
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from onceward.core.clock import Clock, boottime
from onceward.errors import StoreError

CHECKED: Final = 10.0  # seconds between checks whether credentials end soon; botocore renews 10 minutes before the end
ENOUGH: Final = 60.0  # seconds that credentials must still last to be used during a renewal
SETTLED: Final = 1.0  # seconds after a renewal in which requests signed earlier are still refused


class Credentials(NamedTuple):
    """An access key, its secret, and a temporary key's session token. Only the access key's id is ever shown."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


class CredentialSource:
    """Credentials, renewed before they end. Any number of wires and threads can share one source."""

    def __init__(self, *, clock: Clock = boottime) -> None:
        self._clock = clock
        self._held: Credentials | None = None
        self._got_at = self._look_at = -math.inf
        self._chain: Any = None  # what botocore found
        self._lock = threading.RLock()  # reentrant: a signal handler may call in this thread
        self._renewing = False
        _SOURCES.add(self)

    def at_hand(self) -> Credentials | None:
        """Return credentials if that takes no I/O. If None, call :meth:`ask`.

        Raises:
            StoreError: the environment's credentials are incomplete or not valid; not transient.
        """
        if (fresh := self._fresh()) is not None:
            return fresh
        # While another thread renews them, use the old ones if they still last long enough.
        held, chain = self._held, self._chain
        if held is not None and chain is not None and self._renewing and not _ends_soon(chain, ENOUGH):
            return held
        return None

    def ask(self) -> Credentials:
        """Return credentials, renewed if needed. This may wait for files, a browser's sign-in or the network.

        Raises:
            StoreError: there are none (not transient), or they could not be renewed (transient).
        """
        with self._lock:
            if (fresh := self._fresh()) is not None:
                return fresh
            self._renewing = True
            try:
                self._chain = chain = self._chain or _chain()
                frozen = chain.get_frozen_credentials()
            except StoreError:
                raise
            except Exception as error:
                self._chain = None
                raise StoreError(
                    f"no AWS credentials could be read: {error}", transient=self._held is not None
                ) from error
            finally:
                self._renewing = False
            credentials = _checked(
                Credentials(frozen.access_key, frozen.secret_key, frozen.token), "the AWS configuration"
            )
            return self._hold(credentials, self._clock() + CHECKED if hasattr(chain, "refresh_needed") else math.inf)

    def expire(self) -> bool:
        """Drop credentials that the service calls expired; the next request gets new ones. Return True: a retry may help.

        If many requests are refused at once, only the first call has an effect.
        """
        if self._clock() >= self._got_at + SETTLED:
            self._look_at = -math.inf
            self._chain = None  # drops its cache, too
            self._got_at = self._clock()
        return True

    def _fresh(self) -> Credentials | None:
        now = self._clock()
        if self._held is not None and now < self._look_at:
            return self._held
        if (credentials := from_environment(os.environ)) is not None:
            return self._hold(credentials, math.inf)  # until refused: their end is not known
        held, chain = self._held, self._chain
        if held is not None and chain is not None and not _ends_soon(chain):
            return self._hold(held, now + CHECKED)
        return None

    def _hold(self, credentials: Credentials, until: float) -> Credentials:
        if self._held != credentials:  # signers compare by identity, so equal credentials stay one object
            self._held = credentials
            self._got_at = self._clock()
        self._look_at = until
        return self._held

    def start_anew(self) -> None:
        """Reset in a forked child: the threads that held our lock or botocore's exist only in the parent."""
        self._lock, self._renewing = threading.RLock(), False
        if self._chain is not None and hasattr(self._chain, "refresh_needed"):
            self._chain = None
            self._look_at = -math.inf


def from_environment(environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials that environment variables hold, or None.

    Raises:
        StoreError: an access key has no secret, or a value holds a character that no key has; not transient.
    """
    access_key = environ.get("AWS_ACCESS_KEY_ID")
    if not access_key:
        return None
    secret_key = environ.get("AWS_SECRET_ACCESS_KEY")
    if not secret_key:
        raise StoreError("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both, or neither")
    token = environ.get("AWS_SESSION_TOKEN") or environ.get("AWS_SECURITY_TOKEN")
    return _checked(Credentials(access_key, secret_key, token or None), "the environment")


def find_region(region: str | None = None) -> str:
    """Return the region: the one given, else AWS_REGION, AWS_DEFAULT_REGION, or the profile's.

    Raises:
        StoreError: there is none, it is not a region's name, or the configuration cannot be read; not transient.
    """
    name = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not name:
        try:
            name = cast("str | None", _session().get_config_variable("region"))
        except ImportError:  # only botocore can read the profile
            name = None
        except Exception as error:
            raise StoreError(f"the AWS configuration could not be read: {error}") from error
    if not name:
        raise StoreError("no AWS region: give region=, set AWS_REGION, or write it into the profile")
    if not name.replace("-", "").isalnum() or not name.isascii():
        raise StoreError(f"{name!r} is not the name of an AWS region, such as eu-west-1")
    return name


def client_of(service: str, arn: str) -> Any:
    """Return botocore's client of a service for the region of an ARN. Raises ImportError without botocore."""
    return _session().create_client(service, region_name=arn.split(":")[3])


_SOURCES: weakref.WeakSet[CredentialSource] = weakref.WeakSet()


def _forked() -> None:
    for source in list(_SOURCES):
        source.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _ends_soon(chain: Any, within: float | None = None) -> bool:
    """Return whether botocore's credentials expire ``within`` seconds; the default is botocore's 15 minutes."""
    return hasattr(chain, "refresh_needed") and bool(chain.refresh_needed(within))


def _chain() -> Any:
    try:
        chain = _session().get_credentials()
    except ImportError as error:
        raise StoreError(
            "no AWS credentials in the environment: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `pip install "
            "botocore`, which finds them in profiles, SSO, containers and instances"
        ) from error
    if chain is None:
        raise StoreError(
            "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with AWS_PROFILE (after "
            "`aws configure` or `aws sso login`), or give this machine a role"
        )
    return chain


def _session() -> Any:
    # botocore has no annotations
    from botocore.session import Session

    return Session()


def _checked(credentials: Credentials, place: str) -> Credentials:
    """Refuse characters that do not fit into a header, such as the line end that a file leaves."""
    for name, value in zip(credentials._fields, credentials, strict=True):
        if value is not None and not (value.isascii() and value.isprintable() and " " not in value):
            raise StoreError(
                f"the {name} in {place} holds a space, a line end or another character that a key cannot have"
            )
    return credentials
