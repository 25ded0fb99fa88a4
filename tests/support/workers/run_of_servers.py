"""A run that starts one server of each kind, a worker that is stopped, and a fork, says which these are, and waits."""

import json
import os
import signal
import time

from faults.processes import workers
from servers.dynoxide import Dynoxide
from servers.ministack import Ministack
from servers.orphans import die_with
from servers.postgres import PgBouncer, Postgres

servers = {"dynoxide": Dynoxide(), "ministack": Ministack("s3"), "postgres": Postgres()}
servers["pgbouncer"] = PgBouncer(servers["postgres"])
pids = {name: server._process.pid for name, server in servers.items()}
parent = os.getpid()
pids["fork"] = os.fork()
if not pids["fork"]:
    die_with(parent)
    signal.pause()
with workers("worker.py") as start:
    worker = start("zombie", "sqlite:///nowhere.db")
    worker.send_signal(signal.SIGSTOP)
    pids["worker"] = worker.pid
    folders = [str(server._scratch) for server in servers.values() if hasattr(server, "_scratch")]
    print(json.dumps({"pids": pids, "folders": folders}), flush=True)
    time.sleep(600)
