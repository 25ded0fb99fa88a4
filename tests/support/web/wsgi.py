"""A server's end of WSGI: requests, what is sent for them, and a small application."""

import io
import json
from wsgiref.util import setup_testing_defaults

JSON = [("Content-Type", "application/json")]
EVENTS = [("Content-Type", "text/event-stream")]


class Pipe(io.RawIOBase):
    """A socket's end: gives what it has, a few bytes at a time, and says when somebody reads more than is his."""

    def __init__(self, data, ends=False):
        self.left = data
        self.ends = ends

    def read(self, size=-1):
        assert size >= 0, "a read without a limit waits for ever"
        assert self.left or self.ends or not size, "a read beyond the body waits for ever"
        part, self.left = self.left[: min(size, 7)], self.left[min(size, 7) :]
        return part


def environ(body=b"{}", key='"k"', chunked=False, **more):
    made = {"REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/orders", "QUERY_STRING": ""}
    made |= {"CONTENT_TYPE": "application/json", "wsgi.input": Pipe(body, ends=chunked)}
    if chunked:
        made |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    else:
        made["CONTENT_LENGTH"] = str(len(body))
    if key is not None:
        made["HTTP_IDEMPOTENCY_KEY"] = key
    setup_testing_defaults(made)
    return made | more


class Exchange:
    def __init__(self, app, **how):
        self.sent = b""
        self.status = None
        self.headers = None
        self.heads = 0
        self._pending = None
        self.response = app(environ(**how), self._start)
        self._parts = iter(self.response)

    def _start(self, status, headers, exc_info=None):
        if exc_info is not None and self.status is not None:
            raise exc_info[1].with_traceback(exc_info[2])
        self.heads += 1
        assert self.heads == 1 or exc_info is not None
        self._pending = (status, headers)
        return self._write

    def _write(self, data):
        status, headers = self._pending
        self.status, self.headers = int(status[:3]), [(name.lower(), value) for name, value in headers]
        self.sent += data

    def part(self):
        """Send the next part and return it; None at the end."""
        part = next(self._parts, None)
        if part is not None:
            self._write(part)
        return part

    def finish(self):
        while self.part() is not None:
            pass
        if self.status is None:
            self._write(b"")
        self.close()
        return self

    def close(self):
        if hasattr(self.response, "close"):
            self.response.close()

    def header(self, name):
        return [value for held, value in self.headers if held == name]

    @property
    def replayed(self):
        return self.header("idempotent-replayed") == ["true"]

    @property
    def problem(self):
        assert self.header("content-type") == ["application/problem+json"]
        assert self.header("content-length") == [str(len(self.sent))]
        return json.loads(self.sent)["type"].partition("#")[2]


def ask(app, **how):
    return Exchange(app, **how).finish()


def body_of(environ):
    """Read the body as applications do."""
    if environ.get("wsgi.input_terminated"):
        return environ["wsgi.input"].read(1 << 30)
    return environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))


class Shop:
    def __init__(self, status="201 Created", headers=JSON):
        self.bodies = []
        self._head = status, headers

    def __call__(self, environ, start_response):
        self.bodies.append(body_of(environ))
        start_response(self._head[0], list(self._head[1]))
        return [b'{"run":%d}' % len(self.bodies)]

    @property
    def runs(self):
        return len(self.bodies)
