"""Turns calls into HTTP requests, and HTTP answers into service answers, for both wires."""

import re
import zlib
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from onceward.errors import StoreError
from onceward.wire.calls import QUERY, Call, ObjectCall, Service, ServiceAnswer
from onceward.wire.credentials import Credentials
from onceward.wire.endpoints import Endpoints, Origin
from onceward.wire.http1 import Raw, Unreadable, header
from onceward.wire.sigv4 import Prepared, Signer

_MONTHS: Final = (b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec")
_DATE: Final = re.compile(
    rb"[a-z]{3}, (\d\d) ([a-z]{3}) ([1-9]\d{3}) ([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60) gmt"
).fullmatch
_SHOWN: Final = 200  # characters of an unexpected answer that an error quotes


class WireRequest(NamedTuple):
    """A request, ready to send."""

    origin: Origin
    data: bytes
    name: str  # in messages
    wait: float  # seconds that the service may take to answer, added to the wire's timeout

    def failure(self, error: BaseException) -> StoreError:
        """Return the error for a request that got no answer."""
        lasting = isinstance(error, UnicodeError) or (isinstance(error, Unreadable) and error.too_large)
        reason = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        return StoreError(f"{self.name} at {self.origin}: {reason}", transient=not lasting)


class _Ready(NamedTuple):
    """What all calls of one action share within one second."""

    service: Service
    second: float
    credentials: Credentials
    origin: Origin
    prepared: Prepared
    head: bytes


class Encoder:
    """Writes calls as signed requests to ``endpoints``."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._signers: dict[str, Signer] = {}
        self._ready: dict[str, _Ready] = {}

    def encode(self, call: Call | ObjectCall, credentials: Credentials, at: float) -> WireRequest:
        """Return the request for a call, signed at ``at`` (seconds since the epoch)."""
        if type(call) is ObjectCall:
            return self._object(call, credentials, at)
        service, action, body, wait = call
        content = msgspec.json.encode(body) if service.speaks != QUERY else _form(call)
        ready = self._ready.get(action)
        if (
            ready is None
            or ready.second != at // 1
            or ready.credentials is not credentials
            or ready.service is not service  # rare: two services share an action's name
        ):
            self._ready[action] = ready = self._action(service, action, credentials, at // 1)
        signature = ready.prepared.signature(sha256(content).hexdigest())
        end = f"{signature}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        return WireRequest(ready.origin, ready.head + end + content, action, wait)

    def _action(self, service: Service, action: str, credentials: Credentials, second: float) -> _Ready:
        origin = self._endpoints.of(service.name)
        signed = {"host": origin.authority}
        kind = "application/x-www-form-urlencoded; charset=utf-8"
        if service.speaks != QUERY:
            signed["x-amz-target"] = f"{service.target}.{action}"
            kind = f"application/x-amz-json-{service.speaks}"
        prepared = self._signer(service.name).prepare("POST", "/", signed, credentials, second)
        headers = prepared.headers | {"content-type": kind}
        head = _head("POST", "/", headers, prepared.authorization)
        return _Ready(service, second, credentials, origin, prepared, head)

    def _signer(self, service: str) -> Signer:
        return self._signers.get(service) or self._signers.setdefault(service, Signer(self._endpoints.region, service))

    def _object(self, call: ObjectCall, credentials: Credentials, at: float) -> WireRequest:
        origin, start = self._endpoints.bucket(call.bucket)
        from urllib.parse import quote

        path = start + quote(call.key, safe="/~")
        content = call.content or b""
        digest = sha256(content).hexdigest()
        signed = {"host": origin.authority, "x-amz-content-sha256": digest}
        prepared = self._signer("s3").prepare(call.method, path, signed, credentials, at)
        authorization = prepared.authorization + prepared.signature(digest)
        headers = {**prepared.headers, "content-length": str(len(content)), **call.headers}
        head = _head(call.method, path, headers, authorization)
        return WireRequest(origin, head + b"\r\n\r\n" + content, f"{call.method} of an object", 0.0)


def decode(
    call: Call | ObjectCall, request: WireRequest, raw: Raw, credentials: Credentials, *, sent: float, received: float
) -> ServiceAnswer:
    """Return an HTTP answer as a service's answer.

    Raises:
        StoreError: it was damaged on its way, or a success is not JSON, as when a proxy answers; transient.
    """
    date = header(raw.head, b"date") if _is_own(raw.head) else None
    in_xml = isinstance(call, ObjectCall) or call.service.speaks == QUERY
    body = _xml_body(raw) if in_xml else _document(call.service, request, raw)  # type: ignore[union-attr]  # as said
    if raw.status >= 400 and credentials.token and isinstance(body, dict):
        _hide(body, credentials.token)
    return ServiceAnswer(raw.status, body, None if date is None else read_date(date), sent, received)


def _is_own(head: bytes) -> bool:
    """Return whether the service itself answered, and no proxy, load balancer or sign-in page.

    Amazon's services send a request id, and these also their content type. Other implementations of DynamoDB send the type.
    """
    return b"application/x-amz-json-1." in head or b"\r\nx-amzn-requestid:" in head or b"\r\nx-amz-request-id:" in head


def _head(method: str, path: str, headers: dict[str, str], authorization: str) -> bytes:
    """Return the request line and the headers. Authorization is last, so that the signature can follow."""
    lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1{lines}\r\nAuthorization: {authorization}".encode()


def _document(service: Service, request: WireRequest, raw: Raw) -> object:
    checksum = header(raw.head, b"x-amz-crc32")
    if checksum is not None and checksum != b"%d" % zlib.crc32(raw.body):
        raise StoreError(f"{request.name} at {request.origin}: the answer's checksum is wrong", transient=True)
    try:
        body: object = msgspec.json.decode(raw.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if isinstance(body, dict):
        return body
    text = raw.body[: 4 * _SHOWN].decode(errors="replace")[:_SHOWN]
    if raw.status == 200:
        raise StoreError(
            f"{request.name} at {request.origin}: the answer is not {service.title}'s: {text!r}", transient=True
        )
    return {"__type": "", "message": text}


def _form(call: Call) -> bytes:
    """Return the parameters of AWS Query (awslabs/smithy, "AWS query protocol")."""
    from urllib.parse import urlencode

    return urlencode({"Action": call.action, "Version": call.service.target, **call.body}).encode()


def _xml_body(raw: Raw) -> object:
    """Return the content, or an error shaped like that of AWS JSON (S3 API Reference, "REST error responses")."""
    if raw.status < 300:
        return raw.body
    code, message = (_between(raw.body, b"<%b>" % name, b"</%b>" % name) for name in (b"Code", b"Message"))
    return {"__type": code, "message": message}


def _between(text: bytes, start: bytes, end: bytes) -> str:
    return text.partition(start)[2].partition(end)[0][:_SHOWN].decode(errors="replace")


def _hide(body: dict[str, object], token: str) -> None:
    """Remove the session token from an error's message: an error about a signature quotes the whole request."""
    for name in ("message", "Message"):
        if isinstance(text := body.get(name), str):
            body[name] = text.replace(token, "***")


_last_date: tuple[bytes, float | None] = (b"", None)


def read_date(date: bytes) -> float | None:
    """Return a ``Date`` header (in lower case; RFC 9110, 5.6.7) as seconds since the epoch, or None if it is not valid."""
    global _last_date  # all answers within a second share a date; the tuple is replaced as a whole
    last = _last_date
    if last[0] != date:
        _last_date = last = date, _parsed(date)
    return last[1]


def asked_pause(retry_after: bytes | None, date: bytes | None) -> float | None:
    """Return the seconds of a ``Retry-After`` (RFC 9110, 10.2.3), or None. A date in it counts from the answer's own ``date``."""
    text = (retry_after or b"").strip().lower()
    if text.isdigit():
        return float(text[:9])
    then, now = read_date(text), read_date((date or b"").strip().lower())
    return None if then is None or now is None else max(0.0, then - now)


def _parsed(date: bytes) -> float | None:
    if (match := _DATE(date)) is None or match[2] not in _MONTHS:
        return None
    day, year, hours, minutes, seconds = (int(match[number]) for number in (1, 3, 4, 5, 6))
    try:
        minute = datetime(year, _MONTHS.index(match[2]) + 1, day, hours, minutes, tzinfo=UTC)
    except ValueError:  # no such day
        return None
    return minute.timestamp() + seconds  # which can be a leap second
