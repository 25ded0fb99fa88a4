"""A server that takes traces as OTLP over HTTP, and decodes them."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """A receiver on a free port of this machine.

    Attributes:
        spans: all spans that came.
    """

    def __init__(self):
        self.spans, self.faults = [], []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                try:
                    receiver._take(self.path, self._body())
                except Exception as error:
                    receiver.faults.append(error)
                    raise
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _body(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

            def log_message(self, *_): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, path, body):
        assert path == "/v1/traces"
        told = ExportTraceServiceRequest.FromString(body)
        self.spans += [span for of in told.resource_spans for scope in of.scope_spans for span in scope.spans]

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert self.faults == []
