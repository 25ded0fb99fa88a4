"""onceward on DynamoDB against Powertools, idemkit, raw boto3 and a pre-signed request: requests, CPU, wall, cold start.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/dynamodb.py [PART ...]
Parts: capacity, probe, wire, cpu, batch, messages, cold; all of them take about four minutes.

The server is dynoxide, which npm fetches once (Linux on x86-64); delays and counts come from delay_proxy.py, in a process
of its own. All lines of a table take turns in one run, on one server. The goals stand in the tables.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ |= {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}

from delay_proxy import DelayProxy
from dynamodb_capacity import probe, requests_and_units
from dynamodb_cold import cold
from dynamodb_cpu import cpu
from dynamodb_peers import CONNECTIONS, TABLES
from dynamodb_wall import DELAY, batches, messages, proxies
from dynamodb_wire import wires
from servers.dynoxide import Dynoxide

PARTS = ("capacity", "probe", "wire", "cpu", "batch", "messages", "cold")


def main() -> None:
    wanted = sys.argv[1:] or PARTS
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    start = time.perf_counter()
    with ExitStack() as stack:
        server = Dynoxide()
        stack.callback(server.stop)
        for table, key in TABLES.items():
            server.table(table, {key: "S"})

        def proxy(delay: float, mode: str = "") -> DelayProxy:
            made = DelayProxy(server.port, delay, mode)
            stack.callback(made.stop)
            return made

        threads = stack.enter_context(ThreadPoolExecutor(CONNECTIONS))
        packages = ("aws-lambda-powertools", "idemkit", "boto3", "aioboto3")
        print(f"Python {sys.version.split()[0]},", ", ".join(f"{name} {version(name)}" for name in packages))
        if {"capacity", "probe"} & set(wanted):
            counting = proxy(0.0, "count")
        if "capacity" in wanted:
            requests_and_units(counting, threads)
        if "probe" in wanted:
            probe(counting)
        if "wire" in wanted:
            wires(server.url)
        if "cpu" in wanted:
            cpu(server.url, threads)
        if {"batch", "messages"} & set(wanted):
            delayed, answering = proxy(DELAY), proxy(DELAY, "answer")
        if "batch" in wanted:
            batches(delayed.url, threads)
        if "messages" in wanted:
            proxies(server.url, proxy(0.0), delayed, answering)
            messages("on the server", delayed, threads)
            messages("answered by the proxy", answering, threads)
        if "cold" in wanted:
            cold(server.url)
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


if __name__ == "__main__":
    main()
