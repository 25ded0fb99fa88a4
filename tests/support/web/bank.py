"""An application behind a proxy, in a thread: it makes an effect for each request, and loses some of its answers."""

import contextlib
import json
import random
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bank:
    """The effects of payments.

    Attributes:
        asked: number, derived key and fence of each request that made an effect.
        receipts: by derived key, as a bank that knows keys gives them.
        lost: how often the answer to a message was lost or unsure, so that its next request may make the effect again.
    """

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
        """Serve in threads, and give the URL."""
        bank = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receipt, fate = bank.pay(
                    body["id"], self.headers["Idempotency-Key"], int(self.headers["onceward-fence"])
                )
                answer = json.dumps(receipt).encode()
                if fate == "closed":
                    self.close_connection = True
                    return
                self.send_response({"failed": 500, "unsure": 502}.get(fate, 201))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer[:3] if fate == "torn" else answer)
                self.close_connection = fate == "torn"

            def log_message(self, *_): ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_): ...  # a proxy was killed

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
