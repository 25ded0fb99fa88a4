"""A wire of nothing but http.client, for tests that are about what is sent and not about how it gets there."""

import base64
import http.client
import json
import threading
from email.utils import parsedate_to_datetime

from onceward.core.clock import boottime
from onceward.errors import StoreError
from onceward.wire.calls import ServiceAnswer
from onceward.wire.wires import Wires

SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"


class PlainWire:
    """Sends to a local port, one connection a thread."""

    def __init__(self, port, clock=boottime):
        self._port, self._clock = port, clock
        self._local = threading.local()
        self._opened = []

    def send(self, call, at):
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            self._opened.append(connection)
        body = json.dumps(call.body, default=lambda content: base64.b64encode(content).decode())
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{call.action}",
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Date": "20260101T000000Z",
            "Authorization": SIGNED,
        }
        sent = self._clock()
        try:
            connection.request("POST", "/", body, headers)
            reply = connection.getresponse()
            answer = json.loads(reply.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise StoreError(repr(error), transient=True) from error
        date = parsedate_to_datetime(reply.headers["date"]).timestamp()
        return ServiceAnswer(reply.status, answer, date, sent, self._clock())

    def close(self):
        while self._opened:
            self._opened.pop().close()


class AsyncPlainWire:
    """The same, for coroutines of tests, which may block."""

    def __init__(self, port, clock=boottime):
        self._wire = PlainWire(port, clock)

    async def send(self, call, at):
        return self._wire.send(call, at)

    def close(self):
        self._wire.close()


def plain_wires(url, clock=boottime):
    """The wires of a store that reaches the server at ``url``."""
    port = int(url.rpartition(":")[2])
    return Wires(lambda: PlainWire(port, clock), lambda: AsyncPlainWire(port, clock))
