"""A server that answers as it is told, and remembers what reached it."""

import time

from web.http_servers import Handler, HttpServer

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
