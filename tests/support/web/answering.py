"""A server that answers as it is told, and remembers what reached it."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOST = "lost"  # the answer is lost
CUT = "cut"  # the answer is cut off in its body
BODY = b'{"ok": true}'


class Answering:
    """A server that answers as it is told, and remembers what reached it."""

    def __init__(self):
        self.answers = []  # (status, headers), LOST or CUT; 200 when there are no more
        self.came = []  # method, path, headers, body
        self.pause = 0.0  # seconds before each answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.came.append((self.command, self.path, self.headers, body))
                answer = server.answers.pop(0) if server.answers else (200, {})
                time.sleep(server.pause)
                if answer is LOST:
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
                status, headers = (200, {}) if answer is CUT else answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(BODY) + (answer is CUT)))
                self.end_headers()
                self.wfile.write(BODY)
                self.close_connection = answer is CUT or self.close_connection

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    @property
    def keys(self):
        return [headers.get("Idempotency-Key") for _, _, headers, _ in self.came]
