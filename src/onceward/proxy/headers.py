"""Which headers of a request reach the upstream, and which of its answer reach the client. No I/O."""

import ipaddress
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from onceward.http.answer import HOP_BY_HOP
from onceward.http.route import HEADER

if TYPE_CHECKING:
    from onceward.claim.claim import Claim

Lines = list[tuple[bytes, bytes]]
ATTEMPT: Final = b"onceward-attempt"
FENCE: Final = b"onceward-fence"
_KEY: Final = HEADER.lower().encode()
_HOPS: Final = frozenset(name.encode() for name in HOP_BY_HOP)
# The proxy writes these itself. It answers Expect itself, too, as servers of ASGI do.
_OWN: Final = frozenset({b"content-length", b"expect", b"host", b"proxy-authorization", ATTEMPT, FENCE})
_FOR: Final = b"x-forwarded-for"
_FORWARDED: Final = frozenset(
    {b"forwarded", _FOR, b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-real-ip"}
)
_UNSIZED: Final = frozenset({204, 304})


class RequestHeaders:
    """Makes the headers of requests to the upstream.

    Args:
        authority: the upstream's own ``Host``; None keeps the client's.
        trusted: addresses of proxies in front of this one, whose Forwarded and X-Forwarded headers are kept.

    Raises:
        ValueError: an address is not one.
    """

    def __init__(self, authority: bytes | None, trusted: Collection[str]) -> None:
        self._authority = authority
        self._trusted = frozenset(str(ipaddress.ip_address(address)) for address in trusted)
        self._name = (
            b"onceward-" + os.urandom(4).hex().encode()
        )  # tells this proxy from others, so that it knows itself

    def is_loop(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request has passed this proxy before."""
        return any(name == b"via" and self._name in value for name, value in headers)

    def lines(self, scope: Any, claim: "Claim | None") -> Lines:
        """Return the lines for the upstream, but for those of the body's length.

        Args:
            scope: the request's ASGI scope.
            claim: the claim of a request with a key. Its upstream gets a key of its own, the attempt and the fence.
        """
        client = scope.get("client")
        peer: str = client[0] if client else ""
        is_trusted = peer in self._trusted
        left_out = _HOPS | _OWN | connection_options(scope["headers"])
        if claim is not None:
            left_out |= {_KEY}
        if not is_trusted:
            left_out |= _FORWARDED
        # Many applications read "_" in a name as "-", so a name with it could pass for one that is left out or set here.
        guarded = left_out | _FORWARDED | {_KEY}
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if name not in left_out and (b"_" not in name or name.replace(b"_", b"-") not in guarded)
        ]
        came = [value for name, value in kept if name == _FOR]
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        lines = [
            (b"host", host if self._authority is None else self._authority),
            *(line for line in kept if line[0] != _FOR),
        ]
        if peer or came:
            lines.append(
                (_FOR, b", ".join([*came, peer.encode()] if peer else came))
            )  # in one line, which all read alike
        lines += self._forwarding(scope, peer, host, dict(kept) if is_trusted else {})
        lines.append((b"via", b"%b %b" % (scope.get("http_version", "1.1").encode(), self._name)))
        if claim is not None:
            lines += [
                (_KEY, b'"%b"' % claim.key("upstream").encode()),
                (ATTEMPT, b"%d" % claim.attempt),
                (FENCE, b"%d" % claim.fence),
            ]
        return lines

    def _forwarding(self, scope: Any, peer: str, host: bytes, kept: dict[bytes, bytes]) -> Lines:
        """Return the lines that say where a request comes from."""
        scheme: bytes = scope.get("scheme", "http").encode()
        lines: Lines = []
        if b"x-forwarded-proto" not in kept:
            lines.append((b"x-forwarded-proto", scheme))
        if host and b"x-forwarded-host" not in kept:
            lines.append((b"x-forwarded-host", host))
        if b"forwarded" in kept:  # RFC 7239, section 4
            node = f'"[{peer}]"' if ":" in peer else peer or "unknown"
            lines.append((b"forwarded", b"for=%b;proto=%b" % (node.encode(), scheme)))
        return lines


def connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the headers that Connection names: they are about one connection (RFC 9110, section 7.6.1)."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(option.strip().lower() for option in value.split(b","))
    return frozenset(named)


def answer_lines(status: int, headers: Lines) -> Lines:
    """Return the lines of an answer for the client; ``headers`` are the upstream's, the names in lower case."""
    left_out = _HOPS | connection_options(headers)
    if status in _UNSIZED:
        left_out |= {b"content-length"}
    return [(name, value) for name, value in headers if name not in left_out]
