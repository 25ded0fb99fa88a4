"""Which headers of a request reach the upstream, and which of its answer reach the client. No I/O."""

import ipaddress
import os
from collections.abc import Collection
from typing import Final

from onceward.claim.claim import Claim
from onceward.http.answer import HOP_BY_HOP
from onceward.http.route import HEADER
from onceward.web.asgi_messages import Message, Scope

Lines = list[tuple[bytes, bytes]]
_HOPS: Final = frozenset(name.encode() for name in HOP_BY_HOP)
_LENGTH: Final = b"content-length"
_WITHOUT_BODY: Final = {"DELETE", "GET", "HEAD", "OPTIONS"}  # they need no length (RFC 9110, section 8.6)
_KEY: Final = HEADER.lower().encode()
# The proxy writes these itself. It answers Expect itself, too, as servers of ASGI do.
_OWN: Final = {_LENGTH, b"expect", b"host", b"proxy-authorization", b"onceward-attempt", b"onceward-fence"}
_FOR, _HOST, _PROTO = b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"
_FORWARDED: Final = frozenset({b"forwarded", _FOR, _HOST, b"x-forwarded-port", _PROTO, b"x-real-ip"})


class RequestHeaders:
    """Makes the headers of requests. ``authority`` is their ``Host``. ``trusted`` proxies are believed."""

    def __init__(self, authority: bytes, trusted: Collection[str]) -> None:
        self._authority = authority
        self._trusted = {str(ipaddress.ip_address(address)) for address in trusted}
        self._name = b"onceward-" + os.urandom(4).hex().encode()  # so that it knows a request that comes back

    def is_loop(self, headers: Lines) -> bool:
        """Return whether a request has passed this proxy before."""
        return any(name == b"via" and self._name in value for name, value in headers)

    def lines(self, scope: Scope, first: Message, claim: Claim | None) -> Lines:
        """Return the lines for the upstream. With a claim it gets a key of its own. ``first`` begins the body."""
        peer: str = (scope.get("client") or [""])[0]
        left_out = _connection(scope["headers"]) | _OWN | ({_KEY} if claim else set())
        if peer not in self._trusted:
            left_out |= _FORWARDED
        # Many applications read "_" in a name as "-", so a name with it could pass for one that is left out or set here.
        guarded = left_out | _FORWARDED | {_KEY}
        kept: Lines = [
            (name, value)
            for name, value in scope["headers"]
            if name not in left_out and (b"_" not in name or name.replace(b"_", b"-") not in guarded)
        ]
        names = {name for name, _ in kept}
        host: bytes = dict(scope["headers"]).get(b"host", b"")
        scheme: bytes = scope.get("scheme", "http").encode()
        came = [value for name, value in kept if name == _FOR] + ([peer.encode()] if peer else [])
        lines = [(b"host", self._authority)]
        lines += [line for line in kept if line[0] != _FOR]
        lines += [(_FOR, b", ".join(came))] if came else []  # in one line, which all read alike
        lines += [(name, value) for name, value in ((_PROTO, scheme), (_HOST, host)) if value and name not in names]
        if b"forwarded" in names:  # RFC 7239, section 4
            node = f'"[{peer}]"' if ":" in peer else peer or "unknown"
            lines.append((b"forwarded", b"for=%b;proto=%b" % (node.encode(), scheme)))
        lines.append((b"via", b"%b %b" % (scope.get("http_version", "1.1").encode(), self._name)))
        if claim is not None:
            lines.append((_KEY, b'"%b"' % claim.key("upstream").encode()))
            lines += [(b"onceward-attempt", b"%d" % claim.attempt), (b"onceward-fence", b"%d" % claim.fence)]
        size = len(first.get("body", b""))
        if first.get("more_body", False):
            sizes = [line for line in scope["headers"] if line[0] == _LENGTH]
            lines += sizes or [(b"transfer-encoding", b"chunked")]
        elif size or scope["method"] not in _WITHOUT_BODY:
            lines.append((_LENGTH, b"%d" % size))
        return lines


def answer_lines(status: int, headers: Lines) -> Lines:
    """Return the lines of an answer for the client; ``headers`` are the upstream's, the names in lower case."""
    left_out = _connection(headers) | ({_LENGTH} if status in {204, 304} else set())
    return [(name, value) for name, value in headers if name not in left_out]


def _connection(headers: Lines) -> frozenset[bytes]:
    """Return the headers that are about one connection, with those that Connection names (RFC 9110, section 7.6.1)."""
    named = [value for name, value in headers if name == b"connection"]
    return _HOPS.union(option.strip().lower() for value in named for option in value.split(b","))
