"""A stub of SQS and of DynamoDB in a process of its own: hands out prepared messages, and agrees to all else.

Run: python benchmarks/consumers_stub.py SECONDS

Prints its port, and ends when its standard input ends. Each answer is SECONDS late. ``POST /fill`` with ``{"prefix": ...,
"count": ...}`` prepares messages and forgets all others. Of SQS it knows what consumers ask: ReceiveMessage (with its long
poll), DeleteMessage, DeleteMessageBatch, ChangeMessageVisibility, ChangeMessageVisibilityBatch and GetQueueAttributes. It
has one queue, whatever its URL, and a message that was handed out never comes again. Of DynamoDB it answers writes, also
with BatchExecuteStatement, as made, and reads as if there was nothing.

It is for telling fast clients apart: servers that really keep a queue and a ledger take more of the machine than they do.
"""

import hashlib
import heapq
import itertools
import json
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections import deque
from email.utils import formatdate
from pathlib import Path
from typing import Any

from delay_proxy import header, is_whole

ARN = "arn:aws:sqs:eu-west-1:000000000000:"
LONGEST_WAIT = 0.25  # seconds of a long poll, whatever is asked for: nothing more comes, and the next loop waits
ATTRIBUTES = {
    "QueueArn": f"{ARN}stub",
    "VisibilityTimeout": "30",
    "MessageRetentionPeriod": "345600",
    "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": 5}),
}


class Stub:
    """The stub, started."""

    def __init__(self, delay: float = 0.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(delay)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.queue = f"{self.url}/000000000000/stub"

    def fill(self, prefix: str, count: int) -> None:
        """Prepare so many messages."""
        body = json.dumps({"prefix": prefix, "count": count}).encode()
        urllib.request.urlopen(f"{self.url}/fill", body).close()

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def body_of(key: str) -> str:
    """Return the body of a message."""
    return json.dumps({"id": key, "amount": "12.50", "bad": False})


def message(key: str) -> bytes:
    """Return a message as it is received."""
    body = body_of(key)
    fields = {
        "MessageId": key,
        "ReceiptHandle": f"AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a{key}",
        "MD5OfBody": hashlib.md5(body.encode()).hexdigest(),
        "Body": body,
        "Attributes": {
            "SenderId": "AIDAIENQZJOLO23YVJ4VO",
            "SentTimestamp": "1795219200000",
            "ApproximateReceiveCount": "1",
            "ApproximateFirstReceiveTimestamp": "1795219200001",
        },
    }
    return json.dumps(fields).encode()


class Server:
    """The stub's loop; ``delay`` is in seconds."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._epoll = select.epoll()
        self._clients: dict[int, socket.socket] = {}
        self._read: dict[int, bytes] = {}
        self._messages: deque[bytes] = deque()
        self._later: list[tuple[float, int, socket.socket, bytes]] = []  # a heap, by when they are due
        self._numbers = itertools.count()

    def run(self) -> None:
        """Print the port, and answer until the standard input ends."""
        print(self._listener.getsockname()[1], flush=True)
        for number in (self._listener.fileno(), sys.stdin.fileno()):
            self._epoll.register(number, select.EPOLLIN)
        while True:
            wait = max(0.0, self._later[0][0] - time.perf_counter()) if self._later else None
            for number, _ in self._epoll.poll(wait):
                if number == sys.stdin.fileno():
                    return
                if number == self._listener.fileno():
                    self._accept()
                else:
                    self._take(number)
            self._send_due()

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients[client.fileno()], self._read[client.fileno()] = client, b""
        self._epoll.register(client.fileno(), select.EPOLLIN)

    def _take(self, number: int) -> None:
        client = self._clients[number]
        try:
            data = client.recv(262144)
        except OSError:
            data = b""
        if not data:
            del self._clients[number]
            client.close()
            return
        request = self._read[number] + data
        if not is_whole(request):
            self._read[number] = request
            return
        self._read[number] = b""
        head, _, content = request.partition(b"\r\n\r\n")
        answer, wait = self._answer(head, json.loads(content))
        heapq.heappush(self._later, (time.perf_counter() + wait, next(self._numbers), client, answer))

    def _answer(self, head: bytes, asked: dict[str, Any]) -> tuple[bytes, float]:
        """Return the content of the answer, and after how many seconds it is sent."""
        answer, wait = b"{}", self._delay
        action = header(head, b"x-amz-target").rpartition(b".")[2]
        if head.startswith(b"POST /fill "):
            self._messages = deque(message(f"{asked['prefix']}-{n}") for n in range(asked["count"]))
        elif action == b"ReceiveMessage":
            count = min(asked.get("MaxNumberOfMessages", 1), len(self._messages))
            if count:
                answer = b'{"Messages": [' + b", ".join(self._messages.popleft() for _ in range(count)) + b"]}"
            else:
                wait = max(wait, min(asked.get("WaitTimeSeconds", 0), LONGEST_WAIT))
        elif action == b"GetQueueAttributes":
            answer = json.dumps({"Attributes": ATTRIBUTES}).encode()
        elif action == b"BatchExecuteStatement":
            answer = json.dumps({"Responses": [{"TableName": "stub"} for _ in asked["Statements"]]}).encode()
        elif action.endswith(b"Batch"):
            answer = json.dumps(
                {"Successful": [{"Id": entry["Id"]} for entry in asked["Entries"]], "Failed": []}
            ).encode()
        return answer, wait

    def _send_due(self) -> None:
        now = time.perf_counter()
        while self._later and self._later[0][0] <= now:
            _, _, client, content = heapq.heappop(self._later)
            head = (
                "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
                f"Date: {formatdate(usegmt=True)}\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            try:
                client.sendall(head.encode() + content)
            except OSError:
                pass  # it went away; its end is read next


if __name__ == "__main__":
    Server(float(sys.argv[1])).run()
