"""WSGI applications that take their time, for tests that leave them in the middle. LOG is a file with a line for each effect."""

import os
import time
from pathlib import Path

from onceward import Once
from onceward.web import Rules, Scope, WsgiIdempotency

once = Once(os.environ["LEDGER"], lease=float(os.environ.get("LEASE", "30")))


def effect(what):
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{what} {os.getpid()}\n")


def streamed(environ, start_response):
    """Stream five lines, and take effect after the last."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    for number in range(5):
        yield b"line %d\n" % number
        time.sleep(0.2)
    effect("streamed")


def told(environ, start_response):
    """Tell how long the body was; it is read as WSGI has it."""
    body = environ["wsgi.input"].read()
    effect("told")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(len(body)).encode()]


def failing(environ, start_response):
    """Fail in the middle of the answer."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    effect("failing")
    yield b"one"
    yield b"two"
    raise LookupError("its own")


VIEWS = {"/streamed": streamed, "/told": told, "/failing": failing}


def routed(environ, start_response):
    return VIEWS[environ["PATH_INFO"]](environ, start_response)


app = WsgiIdempotency(routed, once, Rules(max_request=1000, scope=Scope.EVERYBODY), name="http")
