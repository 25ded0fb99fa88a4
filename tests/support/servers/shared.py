"""Servers of one run of the tests: the first process that needs one starts it, all use it, and the run stops it."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
from pathlib import Path

from servers.dynoxide import Dynoxide
from servers.kafka import Kafka
from servers.ministack import Ministack
from servers.mysql import Mariadb
from servers.nats import Nats
from servers.postgres import Postgres
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis

_STARTED = []  # by this process; they live as long as the run
Server = Dynoxide | Ministack | Postgres | Mariadb | Nats | Rabbitmq | Redis | Kafka


def shared(kind: type[Server], folder: Path) -> Server:
    """Return the server of this kind of the run whose folder this is."""
    state = folder / f"{kind.__name__}.json"
    with (folder / f"{kind.__name__}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not state.exists():
            made = kind()
            _STARTED.append(made)
            ending = getattr(made, "ending", signal.SIGKILL)
            state.write_text(json.dumps({"pid": made.pid, "where": made.where, "ending": ending}))
    return kind.at(**json.loads(state.read_text())["where"])


def stop(folder: Path) -> None:
    """Kill the run's servers and whatever runs in them."""
    for state in folder.glob("*.json"):
        told = json.loads(state.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(told["pid"], told["ending"])
        if "scratch" in told["where"]:
            shutil.rmtree(told["where"]["scratch"], ignore_errors=True)
    for made in _STARTED:
        made.stop()
    shutil.rmtree(folder, ignore_errors=True)
