"""onceward's consumers on AWS against Powertools and idemkit: Lambda's batch handlers, and workers that drain a queue.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/consumers.py [PART ...]
Parts: lambda, worker, stub; all of them take about four minutes.

The ledger is on dynoxide, which npm fetches once (Linux on x86-64), and the queue on MiniStack, which pip fetches once; delays
and counts come from delay_proxy.py. These servers are slower than the fastest client, as the figures of each alone show, so in
part "stub" consumers_stub.py takes the place of both, and only answers. Everything but the clients is in processes of its
own on the same machine, so messages per second are those of a machine that does it all; CPU is the client's alone. All lines
of a table take turns in one run, on the same servers.
"""

import logging
import os
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ |= {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}

from consumers_lambda import lambdas
from consumers_worker import on_servers, on_stub
from delay_proxy import DelayProxy
from dynamodb_peers import TABLES
from servers.dynoxide import Dynoxide

PARTS = ("lambda", "worker", "stub")
DELAY = 0.005  # seconds


def main() -> None:
    wanted = sys.argv[1:] or PARTS
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    start = time.perf_counter()
    with ExitStack() as stack:
        logging.basicConfig(stream=stack.enter_context(open(os.devnull, "w")), format="%(asctime)s %(message)s")
        server = Dynoxide()
        stack.callback(server.stop)
        for table, key in TABLES.items():
            server.table(table, {key: "S"})

        def proxy(delay: float, mode: str = "") -> DelayProxy:
            made = DelayProxy(server.port, delay, mode)
            stack.callback(made.stop)
            return made

        packages = ("aws-lambda-powertools", "idemkit", "boto3", "aioboto3")
        print(f"Python {sys.version.split()[0]},", ", ".join(f"{name} {version(name)}" for name in packages))
        counting = proxy(0.0, "count")
        if "lambda" in wanted:
            lambdas(server.url, proxy(DELAY), counting, DELAY)
        if "worker" in wanted:
            on_servers(server.url, counting, stack)
        if "stub" in wanted:
            on_stub(DELAY, stack)
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


if __name__ == "__main__":
    main()
