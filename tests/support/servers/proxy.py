"""A proxy before a server of AWS, which counts, and fails as a test says."""

import calendar
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl

from web.http_servers import Handler, HttpServer


class Seen(NamedTuple):
    """A request that came to the proxy; its action is DynamoDB's, or for S3 the method."""

    action: str
    body: dict
    headers: dict[str, str]
    number: int
    path: str = "/"


class Refuse(NamedTuple):
    """Answer with an error of the service's own instead of forwarding."""

    code: str
    status: int = 400
    message: str = "refused by the test"
    more: Mapping[str, object] = MappingProxyType({})  # other members of the answer


class Fault(NamedTuple):
    """What happens to a request: slept before, cut before it is made, or cut after it is made."""

    delay: float = 0.0
    lose_request: bool = False
    lose_reply: bool = False
    delay_reply: float = 0.0
    reset_reply: bool = False  # half of the reply is sent
    twice: bool = False  # it is forwarded a second time, and answered with what came of that
    late: int = 0  # cut now, and forwarded right before the so many'th request from here, or by Proxy.deliver
    edit_request: Callable[[dict], dict] | None = None
    edit_reply: Callable[[dict], dict] | None = None
    raw: bytes | None = None  # sent in place of the reply, and then the connection is closed


Rule = Callable[[Seen], Refuse | Fault | None]


class Proxy:
    """Forwards to a server, counts, and fails as its ``rule`` says."""

    def __init__(self, port: int) -> None:
        self.seen: list[Seen] = []
        self.rule: Rule = lambda seen: None
        self.date: Callable[[], float] | None = None
        self.dateless = False
        self.tolerance: float | None = None
        self._late: list[tuple[int, _Forwarded]] = []
        self._upstream = port
        self._lock = threading.Lock()
        proxy = self

        class Asked(_Handler):
            asked = proxy
            upstream_port = port

        server = HttpServer(Asked)
        self.port, self.url, self.stop = server.server_port, server.url, server.stop

    def now(self) -> float:
        return time.time() if self.date is None else self.date()

    @property
    def actions(self) -> list[str]:
        return [seen.action for seen in self.seen]

    def clear(self) -> None:
        self.seen.clear()
        self.rule = lambda seen: None
        self.date = None
        self.dateless = False
        self.tolerance = None
        self._late.clear()

    def deliver(self) -> int:
        """Forward the late requests that have not arrived yet; return how many there were."""
        due = self.due(None)
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=30)
        for request in due:
            request.on(connection)
        connection.close()
        return len(due)

    def due(self, number: int | None) -> "list[_Forwarded]":
        """Take out the late requests that arrive before the one with ``number``."""
        with self._lock:
            due = [request for at, request in self._late if number is None or at <= number]
            self._late = [] if number is None else [(at, request) for at, request in self._late if at > number]
        return due

    def postpone(self, number: int, request: "_Forwarded") -> None:
        with self._lock:
            self._late.append((number, request))

    def note(self, action: str, body: dict, headers: dict[str, str], path: str) -> Seen:
        with self._lock:
            seen = Seen(action, body, headers, len(self.seen), path)
            self.seen.append(seen)
        return seen

    def skewed(self, signed: str) -> Refuse | None:
        """Return what AWS says of a request that was signed at another time."""
        if self.tolerance is None:
            return None
        now, form = self.now(), "%Y%m%dT%H%M%SZ"
        at = calendar.timegm(time.strptime(signed, form))
        shown, minutes = time.strftime(form, time.gmtime(now)), f"{self.tolerance / 60:g} min."
        if at < now - self.tolerance:
            limit = time.strftime(form, time.gmtime(now - self.tolerance))
            says = f"Signature expired: {signed} is now earlier than {limit} ({shown} - {minutes})"
        elif at > now + self.tolerance:
            limit = time.strftime(form, time.gmtime(now + self.tolerance))
            says = f"Signature not yet current: {signed} is still later than {limit} ({shown} + {minutes})"
        else:
            return None
        return Refuse("InvalidSignatureException", 400, says)


class _Forwarded(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    def on(self, connection: http.client.HTTPConnection) -> tuple[int, dict[str, str], bytes]:
        kept = {k: v for k, v in self.headers.items() if k.lower() not in {"host", "connection", "content-length"}}
        connection.request(self.method, self.path, self.content, kept)
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()


_OWN = {"content-type": "application/x-amz-json-1.0", "x-amzn-requestid": "1", "x-amz-request-id": "1"}  # of an error


class _Handler(Handler):
    disable_nagle_algorithm = True
    asked: Proxy
    upstream_port: int
    upstream: http.client.HTTPConnection | None = None

    def do_POST(self) -> None:
        content = self.content()
        if self._in_xml:
            form = dict(parse_qsl(content.decode(), keep_blank_values=True))
            self._serve(form["Action"], form, content)
        else:
            self._serve(self.headers.get("X-Amz-Target", "").rpartition(".")[2], json.loads(content), content)

    @property
    def _in_xml(self) -> bool:
        """Whether errors are XML: of S3, and of services of AWS Query."""
        return self.command != "POST" or "form-urlencoded" in self.headers.get("Content-Type", "")

    def do_GET(self) -> None:
        self._serve("GET", {}, b"")

    def do_PUT(self) -> None:
        self._serve("PUT", {}, self.content())

    def _serve(self, action: str, body: dict, content: bytes) -> None:
        proxy = self.asked
        request = _Forwarded(self.command, self.path, dict(self.headers.items()), content)
        seen = proxy.note(action, body, request.headers, self.path)
        for late in proxy.due(seen.number):
            self._forward(late)
        what = proxy.skewed(self.headers.get("X-Amz-Date", "")) or proxy.rule(seen)
        fault = what if isinstance(what, Fault) else Fault()
        time.sleep(fault.delay)
        if fault.lose_request or fault.late:
            if fault.late:
                proxy.postpone(seen.number + fault.late, request)
            self.close_connection = True
            return
        if isinstance(what, Refuse):
            status, headers, answer = what.status, _OWN, self._refusal(what)
        else:
            if fault.edit_request is not None:
                request = request._replace(content=json.dumps(fault.edit_request(body)).encode())
            status, headers, answer = self._forward(request)
            if fault.twice:
                status, headers, answer = self._forward(request)
            if fault.edit_reply is not None:
                headers.pop("x-amz-crc32", None)
                answer = json.dumps(fault.edit_reply(json.loads(answer))).encode()
        time.sleep(fault.delay_reply)
        if fault.lose_reply:
            self.close_connection = True
            return
        if fault.raw is not None:
            self.wfile.write(fault.raw)
            self.close_connection = True
            return
        self.send_response_only(status)
        if not proxy.dateless:
            shown = headers.get("date") if proxy.date is None else None
            self.send_header("Date", shown or formatdate(int(proxy.now()), usegmt=True))
        for name in ("x-amz-crc32", "content-type", "x-amzn-requestid", "x-amz-request-id", "retry-after"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if fault.reset_reply:
            self.wfile.write(answer[: len(answer) // 2])
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        self.wfile.write(answer)

    def _refusal(self, refuse: Refuse) -> bytes:
        if self._in_xml:
            text = f"<Error><Code>{refuse.code}</Code><Message>{refuse.message}</Message></Error>"
            return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
        kind = f"com.amazonaws.dynamodb.v20120810#{refuse.code}"
        return json.dumps({"__type": kind, "message": refuse.message, **refuse.more}).encode()

    def _forward(self, request: _Forwarded) -> tuple[int, dict[str, str], bytes]:
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection("127.0.0.1", self.upstream_port, timeout=30)
        return request.on(self.upstream)

    def finish(self) -> None:
        super().finish()
        if self.upstream is not None:
            self.upstream.close()
