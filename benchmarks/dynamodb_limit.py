"""The yardstick: one PutItem, made and signed beforehand, sent again and again over kept connections.

What it costs is the system's calls for sending a request and receiving an answer, and next to nothing else: no client
that signs what it sends can take less.
"""

import asyncio
import http.client
import json
import socket
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

REGION = "eu-west-1"
# A claim as onceward writes it, of the same size.
ITEM = {
    "key": {"S": "orders.handle:limit-1234"},
    "status": {"S": "IN_PROGRESS"},
    "owner": {"S": "0123456789abcdef0123456789abcdef"},
    "fence": {"N": "1767225600123456"},
    "beat": {"N": "0"},
    "lease_until": {"N": "1767225660.123456"},
    "attempts": {"N": "1"},
    "created_at": {"N": "1767225600.123456"},
    "expires_at": {"N": "1767830461"},
}


def presigned(url: str, table: str) -> tuple[bytes, dict[str, str], bytes]:
    """Return the whole request, and its headers and its body."""
    body = json.dumps({"TableName": table, "Item": ITEM, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}).encode()
    headers = {"X-Amz-Target": "DynamoDB_20120810.PutItem", "Content-Type": "application/x-amz-json-1.0"}
    request = AWSRequest("POST", f"{url}/", headers, body)
    SigV4Auth(Credentials("AKIABENCH", "not-a-secret"), "dynamodb", REGION).add_auth(request)
    sent = {"Host": urlsplit(url).netloc, **dict(request.headers.items()), "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"POST / HTTP/1.1\r\n{lines}\r\n".encode() + body, sent, body


class Limit:
    """Over one connection, blocking."""

    def __init__(self, url: str, table: str) -> None:
        parts = urlsplit(url)
        self._request, self._headers, self._body = presigned(url, table)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = http.client.HTTPConnection(parts.netloc)

    def ask(self) -> None:
        """Send it, and read the answer, whose content is ``{}``."""
        self._socket.sendall(self._request)
        answer = self._socket.recv(65536)
        while not answer.endswith(b"{}"):
            answer += self._socket.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")

    def ask_http_client(self) -> None:
        """Do the same with the standard library's client."""
        self._http.request("POST", "/", self._body, self._headers)
        reply = self._http.getresponse()
        assert reply.read() == b"{}"


class _Answers(asyncio.Protocol):
    """One connection of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = self._loop.create_future()
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._seen.endswith(b"{}"):
            self._seen = b""
            self._answer.set_result(None)

    def ask(self, request: bytes) -> asyncio.Future:
        self._answer = self._loop.create_future()
        self.transport.write(request)
        return self._answer


class AsyncLimit:
    """Over as many connections as there are requests at once."""

    def __init__(self, url: str, table: str) -> None:
        parts = urlsplit(url)
        self._where = parts.hostname, parts.port
        self._request, _, _ = presigned(url, table)
        self._idle: list[_Answers] = []

    async def ask(self) -> None:
        """Send it, and wait for the answer."""
        if self._idle:
            connection = self._idle.pop()
        else:
            _, connection = await asyncio.get_running_loop().create_connection(_Answers, *self._where)
        await connection.ask(self._request)
        self._idle.append(connection)
