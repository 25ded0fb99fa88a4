"""Answers and their records, with real servers: ledgers that vanish while handlers run, and answers that are cut short."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Once
from onceward.core.record import COMPLETED, IN_PROGRESS
from servers import Fault
from web_servers import gunicorn, keyed, until, uvicorn

THREADS = ("--worker-class", "gthread", "--threads", "2")
SERVERS = {
    "starlette": (uvicorn, "/slow", ()),
    "fastapi": (uvicorn, "/slow", ()),
    "wsgi": (gunicorn, "/slow", THREADS),
    "flask_app": (gunicorn, "/slow", THREADS),
    "django_wsgi": (gunicorn, "/slow", THREADS),
    "django_asgi": (uvicorn, "/slow", ()),
    "django_asgi/later": (uvicorn, "/later", ()),
}


def away(seen):
    return Fault(lose_request=True)


class Place:
    """Where the applications find their ledger, and where they leave their effects."""

    def __init__(self, url, folder):
        self.url = url
        self.go, self.log = folder / "go", folder / "log"
        self.environment = {"LEDGER": url, "GO": str(self.go), "LOG": str(self.log)}

    @property
    def effects(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def statuses(self):
        return [record.status for record, _ in Once(self.url).ledger.records()]


@pytest.fixture
def place(url, tmp_path):
    return Place(url, tmp_path)


@pytest.fixture(params=SERVERS)
def served(request, place):
    start, path, options = SERVERS[request.param]
    with start(f"web_recording:{request.param.partition('/')[0]}", *options, **place.environment) as server:
        yield server, path


def answered_while_away(server, path, proxy, place):
    """Send a request whose ledger vanishes as it is handled; return its answer and how long that took."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.post, path, b"{}", keyed("k"))
        until(lambda: place.effects)
        proxy.rule = away
        began = time.monotonic()
        place.go.touch()
        return pending.result(), time.monotonic() - began


def test_an_answer_goes_out_although_its_ledger_has_vanished_and_is_recorded_behind(served, proxy, place):
    server, path = served
    (status, fields, body), took = answered_while_away(server, path, proxy, place)
    assert (status, body.strip(b'"')) == (201, b"done")
    assert fields["idempotency-recorded"] == "pending"
    assert took < 8
    proxy.clear()
    until(lambda: place.statuses == [COMPLETED])
    status, fields, body = server.post(path, b"{}", keyed("k"))
    assert (status, fields["idempotent-replayed"], body.strip(b'"')) == (201, "true", b"done")
    assert "idempotency-recorded" not in fields
    assert len(place.effects) == 1


@pytest.mark.parametrize("name", ["starlette", "flask_app", "django_asgi/later"])
def test_a_server_that_stops_records_first_what_it_has_answered(name, proxy, place):
    start, path, options = SERVERS[name]
    with start(f"web_recording:{name.partition('/')[0]}", *options, **place.environment) as server:
        answer, _ = answered_while_away(server, path, proxy, place)
        assert answer[1]["idempotency-recorded"] == "pending"
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        proxy.clear()
        server.process.wait(30)
        assert place.statuses == [COMPLETED]


def test_until_an_answer_is_recorded_a_retry_gets_409(proxy, place):
    with uvicorn("web_recording:starlette", **place.environment) as server:
        answered_while_away(server, "/slow", proxy, place)
        proxy.rule = lambda seen: away(seen) if seen.action == "UpdateItem" or "COMPLETED" in str(seen.body) else None
        assert server.post("/slow", b"{}", keyed("k"))[0] == 409
        assert place.statuses == [IN_PROGRESS]
        proxy.clear()
        until(lambda: place.statuses == [COMPLETED])
        assert len(place.effects) == 1


# --- answers that are cut short -------------------------------------------------------------------------------------


def test_events_whose_client_has_left_are_not_replayed_as_complete(place):
    with uvicorn("web_recording:middled", **place.environment) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = 'POST /events HTTP/1.1\r\nHost: x\r\nIdempotency-Key: "k"\r\nContent-Length: 2\r\n\r\n{}'
            connection.sendall(head.encode())
            read = b""
            while b"data: 3" not in read:
                read += connection.recv(4096)
        until(lambda: place.statuses == [COMPLETED])
        status, _, body = server.post("/events", b"{}", {"Idempotency-Key": '"k"'})
        assert (status, b"#unavailable" in body) == (409, True)
        assert place.effects == []


def test_an_answer_that_fails_in_its_middle_is_not_replayed_as_complete(place):
    with uvicorn("web_recording:middled", **place.environment) as server:
        try:
            server.post("/torn", b"{}", keyed("k"))
        except OSError:
            pass
        except Exception as error:
            assert "IncompleteRead" in repr(error)
        until(lambda: place.effects == ["torn"])
        status, fields, _ = post_whole(server)
        assert (status, fields.get("idempotent-replayed")) != (200, "true")


def post_whole(server):
    try:
        return server.post("/torn", b"{}", keyed("k"))
    except Exception as error:
        assert "IncompleteRead" in repr(error)
        return 0, {}, b""
