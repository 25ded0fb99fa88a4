"""Who may look, and who may act: the settings of a dashboard, and what they follow from.

A visitor is known by a name and the token, which the browser asks for (HTTP's Basic scheme, RFC 7617), or by a header that a trusted
reverse proxy sets. Without both, everybody who reaches the dashboard can read, and nobody can act.
"""

import hmac
import ipaddress
from base64 import b64decode
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

SHORTEST_TOKEN: Final = 16  # characters
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Visitor(NamedTuple):
    """Who sends a request.

    Attributes:
        name: what the audit says; empty if nobody knows.
        by: how the name is known.
    """

    name: str
    by: str


ANYBODY: Final = Visitor("", "")


class Access:
    """The settings of a dashboard, checked.

    Args:
        allow_actions: whether visitors may change records. It needs a token or an identity header.
        token: what visitors sign in with, as a password; None asks for none.
        identity_header: the header in which a reverse proxy says who sends a request.
        trusted_proxies: the addresses of that proxy; the header is believed from no others.
        hosts: names besides those of this machine under which browsers reach the dashboard.

    Raises:
        ValueError: a setting is missing, or is not safe.
    """

    def __init__(
        self,
        *,
        allow_actions: bool = False,
        token: str | None = None,
        identity_header: str | None = None,
        trusted_proxies: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        self.allows_actions = allow_actions
        self.identity_header = identity_header and identity_header.lower()
        self.trusted_proxies = frozenset(str(ipaddress.ip_address(one)) for one in trusted_proxies)
        self.hosts = _LOCAL | {_in_header(host.lower()) for host in hosts}
        self._token = token
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise ValueError(f"the token is too short: give at least {SHORTEST_TOKEN} random characters")
        if identity_header is not None and not self.trusted_proxies:
            raise ValueError(
                "an identity header needs the address of the proxy that sets it: anybody could send that header"
            )
        if self.trusted_proxies and identity_header is None:
            raise ValueError("a trusted proxy needs the name of its identity header")
        if allow_actions and token is None and identity_header is None:
            raise ValueError("actions need to know who acts: give a token, or the identity header of a reverse proxy")

    @property
    def signs_in(self) -> bool:
        """Whether visitors can sign in with a token."""
        return self._token is not None

    @property
    def is_open(self) -> bool:
        """Whether everybody may read."""
        return self._token is None and self.identity_header is None

    def is_host(self, host: str) -> bool:
        """Return whether a Host header names this dashboard. A page of another name may be an attack by DNS."""
        name = host.lower()
        return name in self.hosts or name.rpartition(":")[0] in self.hosts

    def visitor(self, peer: str | None, identity: str | None, login: str | None) -> Visitor | None:
        """Return who sends a request; None if they must sign in first, or the proxy must say.

        Args:
            peer: the address that the request comes from.
            identity: the value of the identity header.
            login: the value of the header Authorization.
        """
        if identity and peer is not None and _address(peer) in self.trusted_proxies:
            return Visitor(identity, f"the proxy's {self.identity_header}")
        if self._token is not None and login and (name := self._name_in(login)):
            return Visitor(name, "token")
        return ANYBODY if self.is_open else None

    def _name_in(self, login: str) -> str:
        """Return the name that comes with the right token; "" for anything else."""
        scheme, _, pair = login.partition(" ")
        try:
            name, _, token = b64decode(pair).decode().partition(":")
        except ValueError:
            return ""
        is_right = hmac.compare_digest(_digest(token), _digest(self._token or ""))
        return " ".join(name.split())[:100] if is_right and scheme.lower() == "basic" else ""


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _address(peer: str) -> str:
    try:
        return str(ipaddress.ip_address(peer))
    except ValueError:  # a test client, or a socket without an address
        return peer


def _in_header(host: str) -> str:
    """Return a name as a Host header has it: an address of IPv6 in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
