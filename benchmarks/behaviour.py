"""What onceward, Powertools and idemkit do where a retry is dangerous, tried out on one DynamoDB-compatible server.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/behaviour.py
It takes about a minute. Each guards the same function, in processes of its own, with a lease of four seconds. For Powertools the
lease is the time that is left to the Lambda function. The server is dynoxide, which npm fetches once (Linux on x86-64). The
probe of a wrong clock needs Debian's faketime.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

LEASE = 4  # seconds
LATER = LEASE + 3  # seconds after which the lease is over for everybody: DynamoDB's clock shows whole seconds
REGION = "eu-west-1"
TABLES = {"onceward": "key", "Powertools": "id", "idemkit": "effective_key"}  # and their key attributes
FAKETIME = ("faketime", "--exclude-monotonic", "-f", "+1h")
Handler = Callable[[dict[str, str]], Any]


def onceward(url: str, handler: Handler) -> Handler:
    from urllib.parse import quote

    from onceward import Once

    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(url)}", lease=LEASE)
    return lambda order: once.run(order["id"], handler, order)


def powertools(url: str, handler: Handler) -> Handler:
    import boto3
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return LEASE * 1000

    def handle(order: dict[str, str]) -> Any:
        return handler(order)

    client = boto3.client("dynamodb", endpoint_url=url, region_name=REGION)
    guarded = idempotent_function(
        handle,
        data_keyword_argument="order",
        persistence_store=DynamoDBPersistenceLayer("Powertools", boto3_client=client),
        config=IdempotencyConfig(event_key_jmespath="id", lambda_context=Context()),
    )
    return lambda order: guarded(order=order)


def idemkit(url: str, handler: Handler) -> Handler:
    from idemkit import DynamoBackend, MethodConfig, idempotent_sync

    backend = DynamoBackend(table="idemkit", endpoint_url=url, region_name=REGION, create_table=False)
    config = MethodConfig(key_fields=["order.id"], scope=lambda: "probe", lease_ttl_seconds=LEASE)

    @idempotent_sync(backend=backend, config=config)
    def handle(order: dict[str, str]) -> Any:
        return handler(order)

    return handle


PEERS = {"onceward": onceward, "Powertools": powertools, "idemkit": idemkit}


def work(peer: str, url: str, journal: str, key: str, what: str, name: str) -> None:
    """Handle one delivery in this process, and print what its caller gets. ``what`` is what happens after the effect."""

    def handler(_order: dict[str, str]) -> str | None:
        with Path(journal).open("a") as file:
            file.write(f"{name}\n")
        if what == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.5)  # the signal stops another thread first
        while what == "is slow" and not Path(journal).with_name("go").exists():
            time.sleep(0.1)
        return None if what == "returns None" else name

    try:
        print(f"{PEERS[peer](url, handler)({'id': key})!r}", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
    os._exit(0)  # idemkit's thread of an event loop does not end


class Probe:
    """Deliveries of one key to one peer."""

    numbers = count()

    def __init__(self, peer: str, url: str) -> None:
        self._journal = Path(tempfile.mkdtemp(prefix="onceward-probe-")) / "journal"
        self._journal.touch()
        self._args = [sys.executable, __file__, peer, url, str(self._journal), f"order-{next(self.numbers)}"]

    def ran(self) -> list[str]:
        """Return the names of the deliveries whose handler has run."""
        return self._journal.read_text().split()

    def go_on(self) -> None:
        """Let a slow handler end."""
        self._journal.with_name("go").touch()

    def start(self, what: str, name: str, *before: str) -> "subprocess.Popen[str]":
        """Start a delivery; return when its handler is in the middle of it."""
        started = subprocess.Popen([*before, *self._args, what, name], stdout=subprocess.PIPE, text=True)
        while name not in self.ran() and started.poll() is None:
            time.sleep(0.02)
        return started

    def told(self, what: str, name: str, *before: str) -> str:
        """Make a delivery, and return what its caller was told."""
        started = subprocess.run([*before, *self._args, what, name], stdout=subprocess.PIPE, text=True, check=True)
        return f"{started.stdout.strip()}{', runs' if name in self.ran() else ''}"


def none(probe: Probe) -> str:
    probe.told("returns None", "first")
    return probe.told("returns None", "second")


def killed(probe: Probe) -> str:
    first = probe.start("stops", "first")
    first.kill()
    first.wait()
    time.sleep(LATER)
    return probe.told("returns", "second")


def paused(probe: Probe) -> str:
    first = probe.start("stops", "first")
    time.sleep(LATER)
    probe.told("returns", "second")
    first.send_signal(signal.SIGCONT)
    return f"{first.communicate()[0].strip()}; {probe.told('returns', 'third')}"


def outlived(probe: Probe) -> str:
    first = probe.start("is slow", "first")
    time.sleep(LATER)
    told = probe.told("returns", "second")
    probe.go_on()
    first.communicate()
    return told


def ahead(probe: Probe) -> str:
    if shutil.which("faketime") is None:
        return "not tried: no faketime"
    first = probe.start("is slow", "first")
    told = probe.told("returns", "second", *FAKETIME)
    probe.go_on()
    first.communicate()
    return told


PROBES = {
    "the first returned None; a second delivery gets": none,
    "the first was killed, its lease is over; a second gets": killed,
    "the first was paused, a second completed; the first, and a third get": paused,
    "the first still runs, longer than its lease; a second gets": outlived,
    "the first still runs; a second, with a clock 1 h ahead, gets": ahead,
}


def main() -> None:
    from measure import table
    from servers.dynoxide import Dynoxide

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": REGION}
    print(", ".join(f"{name} {version(name)}" for name in ("aws-lambda-powertools", "idemkit", "boto3")))
    server = Dynoxide()
    try:
        for name, key in TABLES.items():
            server.table(name, {key: "S"})
        with ThreadPoolExecutor(4) as threads:
            tried = {
                (asked, peer): threads.submit(probe, Probe(peer, server.url))
                for asked, probe in PROBES.items()
                for peer in PEERS
            }
        rows = [(asked, *(tried[asked, peer].result() for peer in PEERS)) for asked in PROBES]
        table("a second delivery of one key; 'runs' means that its handler ran", ["", *PEERS], rows)
    finally:
        server.stop()


if __name__ == "__main__":
    work(*sys.argv[1:]) if len(sys.argv) > 1 else main()
