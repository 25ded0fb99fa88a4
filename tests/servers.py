"""The servers that tests talk to: a real DynamoDB-compatible one, and a proxy in front of it that can be made to fail."""

import base64
import hashlib
import http.client
import json
import os
import platform
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

CACHE = Path(__file__).parent.parent / ".cache"
PACKAGE, VERSION = "@dynoxide/linux-x64", "1.2.1"
INTEGRITY = "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg=="


def missing(message: str):
    """Fail in CI, and elsewhere skip, saying what is missing and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def dynoxide() -> Path:
    """Return the server's binary, fetched from npm once and checked against its pinned digest."""
    binary = CACHE / f"dynoxide-{VERSION}"
    if binary.exists():
        return binary
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing("the DynamoDB-compatible test server (dynoxide, from npm) is fetched for Linux on x86-64 only")
    npm = shutil.which("npm")
    if npm is None:
        missing("npm is not installed, and the test server for DynamoDB comes from it: apt-get install npm")
    CACHE.mkdir(exist_ok=True)
    work = CACHE / f"fetch-{os.getpid()}"
    work.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            [npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=work, capture_output=True, text=True, timeout=300
        )
        (archive,) = work.glob("*.tgz") if done.returncode == 0 else [None]
        if archive is None:
            missing(f"npm could not fetch {PACKAGE}@{VERSION}: {done.stderr[-300:]}")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert f"sha512-{digest}" == INTEGRITY, "what npm sent is not the package that was pinned"
        with tarfile.open(archive) as tar:
            tar.extract("package/dynoxide", work, filter="data")
        made = work / "package" / "dynoxide"
        made.chmod(0o755)
        made.replace(binary)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return binary


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Dynoxide:
    """A running server; its tables are in memory, or in ``path``."""

    def __init__(self, path: Path | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        where = [] if path is None else ["--db-path", str(path)]
        self._process = subprocess.Popen(
            [dynoxide(), "--host", "127.0.0.1", "--port", str(self.port), *where],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise AssertionError("the test server for DynamoDB did not start")

    def ask(self, action: str, **body: object) -> dict:
        """Send one request past everything of ours."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{action}",
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Date": "20260101T000000Z",
            "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/dynamodb/aws4_request, "
            "SignedHeaders=host, Signature=0",
        }
        connection.request("POST", "/", json.dumps(body), headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        assert reply.status == 200, answer
        return answer

    def table(self, name: str, keys: dict[str, str] | None = None) -> str:
        """Make a table with the key attributes given, HASH first."""
        keys = keys or {"key": "S"}
        kinds = ["HASH", "RANGE"]
        self.ask(
            "CreateTable",
            TableName=name,
            AttributeDefinitions=[{"AttributeName": k, "AttributeType": t} for k, t in keys.items()],
            KeySchema=[{"AttributeName": k, "KeyType": kind} for k, kind in zip(keys, kinds, strict=False)],
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def items(self, table: str) -> list[dict]:
        return self.ask("Scan", TableName=table)["Items"]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Seen(NamedTuple):
    """A request that came to the proxy."""

    action: str
    body: dict
    headers: dict[str, str]
    number: int


class Refuse(NamedTuple):
    """Answer with an error of the service's own instead of forwarding."""

    code: str
    status: int = 400
    message: str = "refused by the test"


class Fault(NamedTuple):
    """What happens to a request: slept before, cut before it is made, or cut after it is made."""

    delay: float = 0.0
    lose_request: bool = False
    lose_reply: bool = False
    delay_reply: float = 0.0


Rule = Callable[[Seen], Refuse | Fault | None]


class Proxy:
    """Forwards to a server, counts, and fails as its ``rule`` says.

    Attributes:
        seen: every request, in order.
        rule: called with each; None lets it through.
        date: what the answers' Date header shall show (seconds since the epoch); None leaves it as it is.
    """

    def __init__(self, port: int) -> None:
        self.seen: list[Seen] = []
        self.rule: Rule = lambda seen: None
        self.date: Callable[[], float] | None = None
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            upstream: http.client.HTTPConnection | None = None

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                action = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
                with proxy._lock:
                    seen = Seen(action, json.loads(content), dict(self.headers.items()), len(proxy.seen))
                    proxy.seen.append(seen)
                what = proxy.rule(seen)
                fault = what if isinstance(what, Fault) else Fault()
                time.sleep(fault.delay)
                if fault.lose_request:
                    self.close_connection = True
                    return
                if isinstance(what, Refuse):
                    status, headers = what.status, {}
                    body = json.dumps(
                        {"__type": f"com.amazonaws.dynamodb.v20120810#{what.code}", "message": what.message}
                    )
                    answer = body.encode()
                else:
                    status, headers, answer = self._forward(content)
                time.sleep(fault.delay_reply)
                if fault.lose_reply:
                    self.close_connection = True
                    return
                self.send_response_only(status)
                self.send_header("Date", proxy._shown(headers.get("date")))
                for name in ("x-amz-crc32", "content-type"):
                    if name in headers:
                        self.send_header(name, headers[name])
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def _forward(self, content: bytes) -> tuple[int, dict[str, str], bytes]:
                if self.upstream is None:
                    self.upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                kept = {k: v for k, v in self.headers.items() if k.lower() not in {"host", "connection"}}
                self.upstream.request("POST", "/", content, kept)
                reply = self.upstream.getresponse()
                return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()

            def finish(self) -> None:
                super().finish()
                if self.upstream is not None:
                    self.upstream.close()

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args: object) -> None:
                pass  # a client that went away is part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def _shown(self, real: str | None) -> str:
        now = self.date() if self.date is not None else None
        if now is None and real is not None:
            return real
        from email.utils import formatdate

        return formatdate(time.time() if now is None else int(now), usegmt=True)

    @property
    def actions(self) -> list[str]:
        return [seen.action for seen in self.seen]

    def clear(self) -> None:
        self.seen.clear()
        self.rule = lambda seen: None
        self.date = None

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
