"""onceward on PostgreSQL beside idemkit's backend for it, the raw drivers with the same statements, and a bare socket.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/stores.py [PART ...] [--records 10000000]
Parts: cases, messages, flushes, records; all of them take about four minutes.

The server is Debian's PostgreSQL 15 with its own settings, fsync on, in a temporary folder of the disk (TMPDIR moves it). It
is started and stopped here. Delays and round trips come from delay_proxy.py, in a process of its own: nobody's word is taken
for them. All lines of a table take turns in one run, on one server. The goals stand in the tables.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
for name in [name for name in os.environ if name.startswith(("AWS_", "PG"))]:
    del os.environ[name]
os.environ |= {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}

from idemkit.backends.postgres import init_pg

from delay_proxy import DelayProxy
from postgres_replay import recorded
from servers.dynoxide import Dynoxide
from servers.postgres import Postgres
from stores_cases import BATCH, Servers, cases
from stores_disk import flushes, records
from stores_messages import messages

DELAY = 0.005  # seconds
SIZES = (10_000, 1_000_000)
PARTS = ("cases", "messages", "flushes", "records")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--records", type=int, default=1_000_000, help="of the largest ledger; default 1,000,000")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also a killed benchmark stops its servers
    with ExitStack() as stack:
        server = Postgres()
        stack.callback(server.stop)
        asyncio.run(init_pg(server.url))

        def proxy(delay: float, mode: str = "turns", port: int = server.port) -> DelayProxy:
            made = DelayProxy(port, delay, mode)
            stack.callback(made.stop)
            return made

        packages = ("psycopg", "asyncpg", "idemkit")
        ((told,),) = server.sql("SHOW server_version")
        print(f"PostgreSQL {told}, Python {sys.version.split()[0]},", ", ".join(f"{n} {version(n)}" for n in packages))
        tape = recorded(server.url, BATCH)
        if "cases" in asked.parts:
            other = Dynoxide()
            stack.callback(other.stop)
            other.table("onceward", {"key": "S"})
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            counting = proxy(0.0, "count", other.port)
            cases(Servers(server, proxy(0.0), other.url, counting, folder), tape)
        if "messages" in asked.parts:
            messages("on loopback", server.url, tape)
            messages("5 ms of delay", proxy(DELAY).postgres, tape)
        if "flushes" in asked.parts:
            flushes(server, tape)
        if "records" in asked.parts:
            records(server, [size for size in SIZES if size < asked.records] + [asked.records])
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


if __name__ == "__main__":
    main()
