"""An application behind a proxy, in a thread: it makes an effect for each request, and loses some of its answers."""

import contextlib
import json
import random
import threading
from collections import Counter

from web.http_servers import Handler, HttpServer


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
