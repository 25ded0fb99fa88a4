"""What the Idempotency-Key header costs: onceward's ASGI middleware beside asgi-idempotency-header and idemkit's.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/http.py [PART ...]
Parts: probes (what each does), calls (CPU, ledger in memory), served (under uvicorn, ledger in memory), ledgers (both, with a
ledger that lasts); all of them take about a minute and a half.

All lines of a table take turns in one run. The goals stand in the tables: less CPU added per request than either peer, and a
duplicate answered in a tenth of the guarded handler's time. The ledgers that can be compared are those in memory, of all
three, and DynamoDB (dynoxide, which npm fetches once, for Linux on x86-64), of onceward and idemkit; onceward on SQLite
stands beside them. The other ledger of asgi-idempotency-header is Redis, which onceward has not.

It is not the same work. Part "probes" shows the difference; these are its reasons, in the peers' code.

asgi-idempotency-header 0.2.0, middleware.py and backends/memory.py:
- The key is the header's value alone: there is no fingerprint, no path and no caller in it, so another body, and another
  client, gets the first one's answer. A request's body is never read.
- It records a status and what ``json.loads`` makes of each body message, when the type is exactly ``application/json``. The
  headers are lost; an answer in parts ends in an exception; 5xx is recorded like everything else.
- There is no lease, and no ``try`` around the application: after an exception, a cancellation or a crash the key gets 409
  for ever. The set of keys is never emptied, so when a recorded answer has expired, its key gets 409 for ever, too.

idemkit 1.0.2, adapters/asgi.py, core/engine.py, core/config.py and the backends:
- The engine claims and completes (``decide``, ``on_complete``) without ``execute_with_heartbeat``, so a handler that takes
  longer than its lease (30 s) is run again beside itself.
- ``except Exception`` around the application lets a cancellation pass, which cuts the handler off.
- Of the answer all is sent before ``on_complete`` records it. Answers in parts (``_ResponseCapturer``) and all but 200, 201
  and 202 (``cacheable_status``) are not recorded: a retry runs again. A request of more than 1 MiB is let through without a key.
- DynamoDB's leases are judged by the worker's clock (``time.time()`` in backends/dynamodb.py).
- ``InMemoryBackend.claim`` looks at all records each time, so that its cost grows with the ledger. Each round here has a new one.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from sysconfig import get_path

if __name__ == "http":
    # Its folder comes first on the path of each benchmark, which finds this where it wants the package of the standard library:
    # that takes its place.
    spec = PathFinder.find_spec("http", [get_path("stdlib")])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["http"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["http"])

PARTS = ("probes", "calls", "served", "ledgers")
PACKAGES = ("asgi-idempotency-header", "idemkit", "starlette", "uvicorn", "aioboto3")


def main() -> None:
    import os
    import tempfile
    import time
    from contextlib import ExitStack
    from importlib.metadata import version
    from pathlib import Path

    wanted = sys.argv[1:] or PARTS
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "AKIABENCH",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_REGION": "eu-west-1",
    }

    import http_calls
    import http_served
    from http_peers import IDEMKIT, OURS, TABLES
    from http_probes import probes
    from servers.dynoxide import Dynoxide

    start = time.perf_counter()
    print(f"Python {sys.version.split()[0]},", ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    with ExitStack() as stack:
        if "probes" in wanted:
            probes()
        if "calls" in wanted:
            http_calls.in_memory()
        if "served" in wanted:
            http_served.served("ledger in memory", http_served.in_memory(), stack)
        if "ledgers" in wanted:
            server = Dynoxide()
            stack.callback(server.stop)
            for table, key in TABLES.items():
                server.table(table, {key: "S"})
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-bench-"))
            http_calls.on_ledgers(server.url, f"sqlite:///{folder}/calls.db")
            ledgers = {
                f"{OURS}, DynamoDB": (OURS, server.url),
                f"{IDEMKIT}, DynamoDB": (IDEMKIT, server.url),
                f"{OURS}, SQLite": (OURS, f"sqlite:///{folder}/served.db"),
            }
            http_served.served("ledger that lasts", ledgers, stack)
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


if __name__ == "__main__":
    main()
