"""Who may look, and who may act: the settings of a dashboard, and what they follow from.

A visitor is known by a session, which begins with the token, or by a header that a trusted reverse proxy sets. Without both,
everybody who reaches the dashboard can read, and nobody can act.
"""

import hmac
import ipaddress
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from onceward.core.clock import boottime

_TRIES: Final = 10  # different wrong tokens of one client in a minute
_MINUTE: Final = 60.0  # seconds
_CLIENTS: Final = 10_000


class WrongTokens:
    """The wrong tokens of the last minute, by client. A token that is sent again counts once."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[bytes, float]] = {}

    def is_over(self, address: str) -> bool:
        """Return whether the client at an address has sent too many."""
        return len(self._of(client_at(address))) >= _TRIES

    def add(self, address: str, token: str) -> None:
        """Count a wrong token."""
        client = client_at(address)
        seen = self._of(client)
        seen.setdefault(_digest(token), boottime())
        self._seen.pop(client, None)
        self._seen[client] = seen  # the latest is last
        while len(self._seen) > _CLIENTS:
            del self._seen[next(iter(self._seen))]

    def _of(self, client: str) -> dict[bytes, float]:
        now = boottime()
        return {token: at for token, at in self._seen.get(client, {}).items() if now - at < _MINUTE}


def client_at(address: str) -> str:
    """Return who an address belongs to: one IPv6 client has a whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # a test client, or a socket without an address
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else address


SHORTEST_TOKEN: Final = 16  # characters
SESSION: Final = 8 * 3600.0  # seconds that a session lasts
FORWARDED: Final = "x-forwarded-for"
FORM: Final = 3600.0  # seconds that a form can be sent
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Visitor(NamedTuple):
    """Who sends a request.

    Attributes:
        name: what the audit says; empty if nobody knows.
        mark: what the visitor's forms are bound to.
        by: how the name is known.
    """

    name: str
    mark: str
    by: str


ANYBODY: Final = Visitor("", "", "")


class Access:
    """The settings of a dashboard, checked.

    Args:
        allow_actions: whether visitors may change records. It needs a token or an identity header.
        token: what visitors sign in with; None asks for none.
        identity_header: the header in which a reverse proxy says who sends a request.
        trusted_proxies: the addresses of that proxy; the header is believed from no others.
        hosts: names besides those of this machine under which browsers reach the dashboard.
        clock: the time of day (seconds).

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.allows_actions = allow_actions
        self.identity_header = identity_header and identity_header.lower()
        self.trusted_proxies = frozenset(str(ipaddress.ip_address(one)) for one in trusted_proxies)
        self.hosts = _LOCAL | {_in_header(host.lower()) for host in hosts}
        self._token = token
        self._clock = clock
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
        secret = os.urandom(32) if token is None else token.encode()
        self._secret = hmac.digest(secret, b"onceward dashboard", "sha256")

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

    def is_token(self, text: str) -> bool:
        """Compare a text with the token, in constant time."""
        return self._token is not None and hmac.compare_digest(_digest(text), _digest(self._token))

    def client(self, peer: str, forwarded: list[str]) -> str:
        """Return the address of a client: for a trusted proxy, the last one in its X-Forwarded-For lines."""
        if _address(peer) not in self.trusted_proxies:
            return peer
        return ",".join(forwarded).rpartition(",")[2].strip() or peer

    def visitor(self, peer: str | None, identity: str | None, cookie: str | None) -> Visitor | None:
        """Return who sends a request; None if they must sign in first, or the proxy must say.

        Args:
            peer: the address that the request comes from.
            identity: the value of the identity header.
            cookie: the value of the session cookie.
        """
        if identity and peer is not None and _address(peer) in self.trusted_proxies:
            return Visitor(identity, f"proxy:{identity}", f"the proxy's {self.identity_header}")
        if self.signs_in and cookie and (visitor := self._open_session(cookie)) is not None:
            return visitor
        return ANYBODY if self.is_open else None

    def session(self, name: str) -> str:
        """Return the cookie of a new session."""
        fields = [name, self._clock() + SESSION, os.urandom(8).hex()]
        text = urlsafe_b64encode(msgspec.json.encode(fields)).decode()
        return f"{text}.{self._sign('session', text)}"

    def _open_session(self, cookie: str) -> Visitor | None:
        text, _, mark = cookie.rpartition(".")
        if not _same(mark, self._sign("session", text)):
            return None
        name, ends, nonce = msgspec.json.decode(urlsafe_b64decode(text), type=tuple[str, float, str])
        return Visitor(name, nonce, "token") if self._clock() < ends else None

    def form_token(self, visitor: Visitor) -> str:
        """Return what a form of this visitor must carry, so that no other site can send it."""
        ends = f"{self._clock() + FORM:.0f}"
        return f"{ends}.{self._sign('form', f'{visitor.mark} {ends}')}"

    def is_form(self, visitor: Visitor, token: str) -> bool:
        """Return whether a form is of this visitor, and not too old."""
        ends, _, mark = token.partition(".")
        return _same(mark, self._sign("form", f"{visitor.mark} {ends}")) and self._clock() < float(ends)

    def _sign(self, what: str, text: str) -> str:
        return hmac.new(self._secret, f"{what} {text}".encode(), sha256).hexdigest()


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _address(peer: str) -> str:
    try:
        return str(ipaddress.ip_address(peer))
    except ValueError:  # a test client, or a socket without an address
        return peer


def _in_header(host: str) -> str:
    """Return a name as a Host header has it: an address of IPv6 in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
