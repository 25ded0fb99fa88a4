"""Servers of HTTP in a thread, for tests that are the other end."""

import contextlib
import json
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", headers=(), shown: int | None = None) -> None:
        """Answer with a body, or with its first bytes only."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:shown])

    def log_message(self, *_): ...


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def handle_error(self, *_): ...  # a client that went away is part of the tests

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


LOST = "lost"  # the answer is lost
CUT = "cut"  # the answer is cut off in its body
BODY = b'{"ok": true}'


class Answering:
    def __init__(self):
        self.answers = []  # (status, headers), LOST or CUT; 200 when there are no more
        self.came = []  # method, path, headers, body
        self.pause = 0.0  # seconds before each answer
        told = self

        class Told(Handler):
            def do_POST(self):
                told.came.append((self.command, self.path, self.headers, self.content()))
                answer = told.answers.pop(0) if told.answers else (200, {})
                time.sleep(told.pause)
                self.close_connection = answer in (LOST, CUT) or self.close_connection
                if answer is LOST:
                    self.connection.shutdown(2)
                    return
                status, headers = (200, {}) if answer is CUT else answer
                headers = [*headers.items(), ("Content-Type", "application/json")]
                self.answer(status, BODY, headers, shown=-1 if answer is CUT else None)

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

        server = HttpServer(Told)
        self.url, self.close = server.url, server.stop

    @property
    def keys(self):
        return [headers.get("Idempotency-Key") for _, _, headers, _ in self.came]


class Bank:
    def __init__(self):
        self.asked = []
        self.receipts = {}
        self.lost = Counter()
        self._lock = threading.Lock()

    def pay(self, number, key, fence):
        """Make an effect; return its receipt, and what becomes of the answer."""
        with self._lock:
            lot = random.random()
            if lot < 0.02:
                return None, "failed"
            self.asked.append((number, key, fence))
            receipt = self.receipts.setdefault(key, {"id": number, "by": key})
            fate = {0: "closed", 1: "torn", 2: "unsure"}.get(int(lot * 100) - 2, "told")
            self.lost[number] += fate != "told"
            return receipt, fate

    @contextlib.contextmanager
    def serving(self):
        bank = self

        class Payments(Handler):
            def do_POST(self):
                number = json.loads(self.content())["id"]
                receipt, fate = bank.pay(number, self.headers["Idempotency-Key"], int(self.headers["onceward-fence"]))
                self.close_connection = fate in {"closed", "torn"}
                if fate != "closed":
                    status = {"failed": 500, "unsure": 502}.get(fate, 201)
                    self.answer(status, json.dumps(receipt).encode(), shown=3 if fate == "torn" else None)

        server = HttpServer(Payments)
        try:
            yield server.url
        finally:
            server.stop()
