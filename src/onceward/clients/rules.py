"""Which requests get a key, and when a request is sent again. No I/O, and no client."""

import re
import uuid
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from onceward.claim.held import innermost
from onceward.core.arguments import check_count
from onceward.core.clock import boottime
from onceward.core.retries import jittered
from onceward.errors import LeaseLost
from onceward.wire.http_calls import asked_pause

HEADER: Final = "Idempotency-Key"
_USERINFO: Final = re.compile(r"(?<=//)[^/?#]*@")  # RFC 3986, section 3.2.1
# Methods that take effect once by themselves, however often they are sent (RFC 9110, section 9.2.2).
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
# 409: the first request with this key still runs (draft-ietf-httpapi-idempotency-key-header-07, section 2.7); 425: RFC 8470; 429:
# RFC 6585. 500 is not among them: servers record it as the answer of the key, as Stripe's do.
_AGAIN: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
# Not carried out: the same request is sent elsewhere, or with credentials (RFC 9110, sections 15.4.8, 15.5.2 and 15.5.8).
_NOT_DONE: Final = frozenset({307, 308, 401, 407})
_FIRST, _DOUBLED, _LONGEST = 0.25, 6, 8.0  # seconds, how often they double, seconds


class SendAgain:
    """When a request is sent again, and which requests get a key.

    Args:
        times: the most times that a request is sent.
        within: seconds after which it is not sent again. If Retry-After is longer, the caller gets the answer.
        methods: the methods that get a key.
        header: the name of the key's header. The key has quotes only in ``Idempotency-Key`` (IETF draft).

    Raises:
        ValueError: ``times`` is not a whole number of at least 1, ``within`` are no seconds, or ``methods`` is not a tuple of names.
    """

    def __init__(
        self,
        *,
        times: int = 4,
        within: float = 30.0,
        methods: tuple[str, ...] = ("POST", "PATCH"),
        header: str = HEADER,
    ) -> None:
        names = frozenset(methods)
        if not all(len(one) > 1 and one.isupper() for one in names):
            raise ValueError(f'methods={methods!r}: give a tuple of names, as in ("POST", "PATCH")')
        check_count("times", times)
        if not within >= 0:
            raise ValueError(f"within={within!r}: give seconds")
        self.times, self.within, self.methods, self.header = times, within, names, header

    def sending(self, method: str, url: str, headers: MutableMapping[str, Any], *, whole: bool) -> "ClientCall":
        """Return what is known of a request before it is sent. Add its key to its headers, unless the caller has set one.

        Args:
            method: its method.
            url: its URL, without query and fragment. A user and a password in it do not count.
            headers: its own headers: a caller who sends a request object again has another request.
            whole: whether its body can be sent again.

        Raises:
            LeaseLost: the handler that sends it has lost its claim.
            ValueError: the handler has sent such a request before, so the two need keys of their own.
        """
        method, made = method.upper(), None
        if not headers.get(self.header) and method in self.methods:  # an empty one is none
            claim = innermost()
            made = str(uuid.uuid4()) if claim is None else claim.request_key(method, _USERINFO.sub("", url))
            headers[self.header] = f'"{made}"' if self.header.lower() == HEADER.lower() else made
        keyed = bool(headers.get(self.header))
        return ClientCall(self, again=whole and (keyed or method in _IDEMPOTENT), made=made)


class ClientCall:
    """One request of a caller, and its tries."""

    def __init__(self, rules: SendAgain, *, again: bool, made: str | None) -> None:
        self._rules, self._again, self._made = rules, again, made
        self._tries, self._end = 0, boottime() + rules.within
        self._claim = innermost()

    def pause(self, status: int | None = None, headers: Mapping[str, str] | None = None) -> float | None:
        """Return the seconds until the request is sent again; None if its answer, or its error, is for the caller.

        Args:
            status: of the answer; None if there was none.
            headers: of the answer.
        """
        self._tries += 1
        if status in _NOT_DONE and self._claim is not None and self._made is not None:
            self._claim.free_request_key(self._made)
        if not self._again or (status is not None and status not in _AGAIN) or self._tries >= self._rules.times:
            return None
        pause = jittered(min(_FIRST * 2.0 ** min(self._tries - 1, _DOUBLED), _LONGEST)).seconds
        lines = ((headers or {}).get(name, "").encode(errors="replace") for name in ("Retry-After", "Date"))
        pause = max(pause, asked_pause(*lines) or 0.0)
        return None if boottime() + pause > self._end else pause

    def check(self) -> None:
        """Raise LeaseLost after a pause in which the handler has lost its claim: another may be sending the request."""
        if self._claim is not None and self._claim.lost:
            raise LeaseLost(self._claim.record.key, "send a request again")
