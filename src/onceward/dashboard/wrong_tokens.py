"""Counts wrong tokens, so that guesses are few and nobody locks out another visitor."""

import ipaddress
from hashlib import sha256
from typing import Final

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
        seen.setdefault(sha256(token.encode("utf-8", "surrogatepass")).digest(), boottime())
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
