"""A server that a test scripts byte by byte, in threads; and both wires to it."""

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time

import pytest

from onceward.errors import StoreError
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.wire.calls import Call
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints
from onceward.wire.nonblocking import AsyncHttpWire
from onceward.wire.sockets import HttpWire

DATE = "Fri, 21 Nov 2025 13:16:00 GMT"
CALL = Call(DYNAMODB, "PutItem", {"TableName": "t", "Item": {"key": {"S": "k"}, "result": {"B": b"\x00\xff"}}})
SECRET, TOKEN = "this-is-the-secret-key", "this-is-the-session-token"


def answer(body=b"{}", status="200 OK", headers=(), length=True):
    own = "Content-Type: application/x-amz-json-1.0"
    lines = [f"HTTP/1.1 {status}", f"Date: {DATE}", own, *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """Listens, and gives each connection in turn to a function of its own, in a thread of its own."""

    def __init__(self, *scripts, tls=None):
        self.scripts, self.connections, self.requests, self.tls = scripts, 0, [], tls
        self.ended = threading.Semaphore(0)  # released when a connection is over
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.listening.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.threads, self.open = [], []

    def __enter__(self):
        self.accepting = threading.Thread(target=self.accept)
        self.accepting.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.accepting.join()
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def accept(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            script = self.scripts[min(self.connections, len(self.scripts) - 1)]
            self.connections += 1
            self.threads.append(threading.Thread(target=self.run, args=(connection, script)))
            self.threads[-1].start()

    def run(self, connection, script):
        connection.settimeout(10)
        with contextlib.suppress(OSError), connection:
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            self.open.append(connection)
            with connection:
                script(self, connection)
        self.ended.release()

    def request(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        head, _, content = data.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
        content = bytearray(content)
        while len(content) < length:
            content += connection.recv(1 << 20)
        content = bytes(content)
        self.requests.append((head.decode(), content))
        return head, content


def serve(*answers):
    """Answer each request with the next of the answers (the last one for ever); parts of one are sent one by one."""

    def script(server, connection):
        for number in range(10**9):
            if server.request(connection) is None:
                return
            one = answers[min(number, len(answers) - 1)]
            for part in [one] if isinstance(one, bytes) else one:
                connection.sendall(part)
                if not isinstance(one, bytes):
                    time.sleep(0.002)

    return script


def once(*parts):
    def script(server, connection):
        server.request(connection)
        for part in parts:
            connection.sendall(part)

    return script


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def slow(server, connection):
    server.request(connection)
    connection.recv(1)


class Carrier:
    """One of the two wires, called by blocking."""

    def __init__(self, kind):
        self.kind, self.open = kind, []

    def wire(self, url, **options):
        endpoints = Endpoints("eu-west-1", dynamodb=url, s3=url)
        made = (HttpWire if self.kind == "sync" else AsyncHttpWire)(endpoints, CredentialSource(), **options)
        self.runner = asyncio.Runner() if self.kind == "async" else None
        self.open.append((made, self.runner))
        return made

    def send(self, made, call=CALL, at=1e9):
        return made.send(call, at) if self.runner is None else self.runner.run(made.send(call, at))

    def close(self):
        for made, runner in self.open:
            made.close()
            if runner is not None:
                runner.close()

    def refused(self, made, call=CALL):
        """Send, and return the error, which shows no secret."""
        with pytest.raises(StoreError) as caught:
            self.send(made, call)
        text = f"{caught.value!r} {caught.value.__cause__!r}"
        assert not [secret for secret in (SECRET, TOKEN, "Signature") if secret in text]
        return caught.value
