"""Which headers of a request reach the upstream, and which of its answer reach the client. No I/O."""

import ipaddress
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from onceward.http.answer import HOP_BY_HOP
from onceward.http.route import HEADER
from onceward.web.asgi_messages import Scope

if TYPE_CHECKING:
    from onceward.claim.claim import Claim

Lines = list[tuple[bytes, bytes]]
_ATTEMPT: Final = b"onceward-attempt"
_FENCE: Final = b"onceward-fence"
_KEY: Final = HEADER.lower().encode()
_HOPS: Final = frozenset(name.encode() for name in HOP_BY_HOP)
# The proxy writes these itself. It answers Expect itself, too, as servers of ASGI do.
_OWN: Final = frozenset({b"content-length", b"expect", b"host", b"proxy-authorization", _ATTEMPT, _FENCE})
_FOR: Final = b"x-forwarded-for"
_PROTO: Final = b"x-forwarded-proto"
_HOST: Final = b"x-forwarded-host"
_FORWARDED: Final = frozenset({b"forwarded", _FOR, _HOST, b"x-forwarded-port", _PROTO, b"x-real-ip"})
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
        self._name = b"onceward-" + os.urandom(4).hex().encode()  # so that it knows a request that comes back

    def is_loop(self, scope: Scope) -> bool:
        """Return whether a request has passed this proxy before."""
        return any(name == b"via" and self._name in value for name, value in scope["headers"])

    def lines(self, scope: Scope, claim: "Claim | None") -> Lines:
        """Return the lines for the upstream, but for those of the body's length.

        Args:
            scope: the request's ASGI scope.
            claim: the claim of a request with a key. Its upstream gets a key of its own, the attempt and the fence.
        """
        client = scope.get("client")
        peer: bytes = client[0].encode() if client else b""
        left_out = _HOPS | _OWN | connection_options(scope["headers"])
        if claim is not None:
            left_out |= {_KEY}
        if peer.decode() not in self._trusted:
            left_out |= _FORWARDED
        # Many applications read "_" in a name as "-", so a name with it could pass for one that is left out or set here.
        guarded = left_out | _FORWARDED | {_KEY}
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if name not in left_out and (b"_" not in name or name.replace(b"_", b"-") not in guarded)
        ]
        names = {name for name, _ in kept}
        host: bytes = next((value for name, value in scope["headers"] if name == b"host"), b"")
        scheme: bytes = scope.get("scheme", "http").encode()
        lines = [(b"host", host if self._authority is None else self._authority), (b"connection", b"close")]
        lines += [line for line in kept if line[0] != _FOR]
        came = [value for name, value in kept if name == _FOR] + ([peer] if peer else [])
        if came:
            lines.append((_FOR, b", ".join(came)))  # in one line, which all read alike
        if _PROTO not in names:
            lines.append((_PROTO, scheme))
        if host and _HOST not in names:
            lines.append((_HOST, host))
        if b"forwarded" in names:  # RFC 7239, section 4
            node = b'"[%b]"' % peer if b":" in peer else peer or b"unknown"
            lines.append((b"forwarded", b"for=%b;proto=%b" % (node, scheme)))
        lines.append((b"via", b"%b %b" % (scope.get("http_version", "1.1").encode(), self._name)))
        if claim is not None:
            lines.append((_KEY, b'"%b"' % claim.key("upstream").encode()))
            lines += [(_ATTEMPT, b"%d" % claim.attempt), (_FENCE, b"%d" % claim.fence)]
        return lines


def connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the headers that Connection names: they are about one connection (RFC 9110, section 7.6.1)."""
    named = [value for name, value in headers if name == b"connection"]
    return frozenset(option.strip().lower() for value in named for option in value.split(b","))


def answer_lines(status: int, headers: Lines) -> Lines:
    """Return the lines of an answer for the client; ``headers`` are the upstream's, the names in lower case."""
    left_out = _HOPS | connection_options(headers)
    if status in _UNSIZED:
        left_out |= {b"content-length"}
    return [(name, value) for name, value in headers if name not in left_out]
