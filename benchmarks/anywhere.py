"""What the service, the proxy and pipelines cost: ``python benchmarks/anywhere.py [service|proxy|pipelines ...]``.

CPU is that of the client and of the servers together, from the kernel's accounts. Ledgers are files of SQLite, where a sync costs
nothing if there is such a place.
"""

import contextlib
import http.client
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from measure import places, table

SOURCES = Path(__file__).parents[1] / "src"
CALLS, ROUNDS, LINES = 200, 5, 2000
PARTS = ["service", "proxy", "pipelines"]
_TICK = os.sysconf("SC_CLK_TCK")

APP = """
async def plain(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json"), (b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})

def guarded():
    import os
    from onceward import Once
    from onceward.web import AsgiIdempotency, Rules, Scope
    return AsgiIdempotency(plain, Once(os.environ["LEDGER"]), Rules(scope=Scope.EVERYBODY), name="bench")
"""
PIPELINE = """
name: bench
ledger: sqlite:///LEDGER
source: {ndjson: {files: [in.ndjson]}}
guard: {key: message.id}
steps:
  - map: {set: {tax: message.amount}, remove: [note]}
  - filter: {where: "message.amount >= `0`"}
  - map: {to: "{order: message.id, total: message.amount, tax: message.tax}"}
sinks:
  - stdout: {}
"""
PLAIN = """
import json, sys
for line in open("in.ndjson"):
    message = json.loads(line)
    message["tax"] = message["amount"]
    del message["note"]
    if message["amount"] >= 0:
        print(json.dumps({"order": message["id"], "total": message["amount"], "tax": message["tax"]}))
"""

Call = Callable[[str, dict[str, object]], dict[str, object]]


class Ends(NamedTuple):
    """Microseconds of CPU per operation."""

    client: float
    servers: float


def main(wanted: list[str]) -> None:
    home = Path(tempfile.mkdtemp(prefix="onceward-bench-", dir=places().get("memory")))
    (home / "app.py").write_text(APP)
    for part in wanted:
        {"service": service, "proxy": proxy, "pipelines": pipelines}[part](home)


# --- the service ----------------------------------------------------------------------------------------------------


def service(home: Path) -> None:
    """A claim and its completion, over one connection that is kept."""
    with started(home, "-m", "onceward", "serve", "--store", f"sqlite:///{home}/serve.db", "--no-log") as (port, pids):

        def claims(call: Call) -> None:
            for _ in range(CALLS):
                held = {"key": secrets.token_hex(8), "id": secrets.token_hex(16)}
                fence = call("claim", held)["fence"]
                call("complete", {**held, "fence": fence, "result": {"paid": 5}})

        def over(client: Callable[[int], contextlib.AbstractContextManager[Call]]) -> None:
            with client(port) as call:
                claims(call)

        cases = {"http.client": lambda: over(library), "a bare socket": lambda: over(bare)}
        rows = [[name, *ends, sum(ends), 1000.0] for name, ends in measured(cases, pids).items()]
    table(
        "A claim and its completion through the service, µs of CPU",
        ["client", "client", "service", "both ends", "goal"],
        rows,
    )


@contextlib.contextmanager
def library(port: int) -> Iterator[Call]:
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def call(action: str, body: dict[str, object]) -> dict[str, object]:
        connection.request("POST", f"/v1/bench/{action}", json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    yield call
    connection.close()


@contextlib.contextmanager
def bare(port: int) -> Iterator[Call]:
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def call(action: str, body: dict[str, object]) -> dict[str, object]:
            text = json.dumps(body).encode()
            head = f"POST /v1/bench/{action} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            return json.loads(exchanged(connection, head.encode() + text))

        yield call


def exchanged(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and return the body of its answer, which has a length."""
    connection.sendall(request)
    data = connection.recv(65536)
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += connection.recv(65536)
    at = data.lower().find(b"content-length:") + 15
    size = int(data[at : data.find(b"\r\n", at)])
    while len(data) < end + 4 + size:
        data += connection.recv(65536)
    return data[end + 4 :]


# --- the proxy ------------------------------------------------------------------------------------------------------


def proxy(home: Path) -> None:
    """A POST with a new key, and its repetition, beside the middleware and beside the proxy without a guard."""
    app = ("-m", "uvicorn", "--no-access-log", "--log-level", "warning")
    with (
        started(home, *app, "app:plain") as (plain, of_plain),
        started(home, *app, "--factory", "app:guarded", LEDGER=f"sqlite:///{home}/web.db") as (guarded, of_guarded),
        started(
            home,
            *("-m", "onceward", "proxy", "--upstream", f"http://127.0.0.1:{plain}", "--name", "bench", "--scope"),
            *("everybody", "--optional", "--store", f"sqlite:///{home}/proxy.db"),
        ) as (through, of_proxy),
    ):
        cases: dict[str, tuple[int, bool, list[int]]] = {
            "the application alone": (plain, False, of_plain),
            "with the middleware": (guarded, True, of_guarded),
            "behind the proxy, no key": (through, False, of_plain + of_proxy),
            "behind the proxy": (through, True, of_plain + of_proxy),
        }
        rows = []
        for name, (port, keyed, pids) in cases.items():
            found = measured({"first": partial(post, port, keyed), "again": partial(post, port, keyed, "a")}, pids)
            rows.append([name, found["first"].servers, found["again"].servers])
    table("A POST, µs of CPU of all servers", ["", "first", "repeated"], rows)


def post(port: int, keyed: bool, key: str | None = None) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(CALLS):
            line = f"Idempotency-Key: {key or secrets.token_hex(8)}\r\n" if keyed else ""
            head = f"POST /pay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{line}Content-Length: 12\r\n\r\n"
            exchanged(connection, head.encode() + b'{"amount":5}')


# --- pipelines ------------------------------------------------------------------------------------------------------


def pipelines(home: Path) -> None:
    """The same three steps on the same lines, less the time of a start."""
    (home / "plain.py").write_text(PLAIN)
    rows = []
    for name in "plain Python", "a pipeline":
        took = []
        for turn in range(ROUNDS):
            lines = []
            for count in (1, LINES):
                (home / "in.ndjson").write_text(
                    "".join(f'{{"id":{n},"amount":{n},"note":"x"}}\n' for n in range(count))
                )
                (home / "p.yaml").write_text(PIPELINE.replace("LEDGER", f"{home}/pipe-{turn}-{count}.db"))
                command = ["plain.py"] if name == "plain Python" else ["-m", "onceward", "run", "p.yaml"]
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, *command],
                    cwd=home,
                    env=environment(home),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                lines.append(time.perf_counter() - began)
            took.append(lines[1] - lines[0])
        seconds = statistics.median(took)
        rows.append([name, round(LINES / seconds), round(3 * LINES / seconds)])
    table("Three steps on each line, a second", ["", "lines", "steps"], rows)


# --- processes ------------------------------------------------------------------------------------------------------


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{SOURCES}:{home}", **more}


@contextlib.contextmanager
def started(home: Path, *command: str, **more: str) -> Iterator[tuple[int, list[int]]]:
    """Give the port and the processes of a server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port)],
        cwd=home,
        env=environment(home, **more),
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert process.poll() is None, command
            time.sleep(0.05)
        yield port, [process.pid]
    finally:
        process.terminate()
        process.wait()


def spent(pids: list[int]) -> float:
    """Return the seconds of CPU of processes."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / _TICK


def measured(cases: dict[str, Callable[[], object]], pids: list[int]) -> dict[str, Ends]:
    """Return the medians of rounds that take turns, after one to warm up."""
    seen: dict[str, list[Ends]] = {name: [] for name in cases}
    for turn in range(ROUNDS + 1):
        for name, case in cases.items():
            mine, theirs = time.process_time(), spent(pids)
            case()
            ends = Ends((time.process_time() - mine) / CALLS * 1e6, (spent(pids) - theirs) / CALLS * 1e6)
            if turn:
                seen[name].append(ends)
    return {
        name: Ends(statistics.median(one.client for one in found), statistics.median(one.servers for one in found))
        for name, found in seen.items()
    }


if __name__ == "__main__":
    main(sys.argv[1:] or PARTS)
