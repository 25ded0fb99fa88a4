"""What a run of the tests has started ends with it, also when it is killed."""

import json
import os
import signal
import subprocess
import sys
from multiprocessing.connection import wait

import pytest

from places import SOURCES, SUPPORT, WORKERS
from servers.ministack import ministack
from servers.needs import dynoxide
from servers.postgres import debian
from waiting import until

PATIENCE = 60.0


@pytest.fixture
def killed_run():
    """Give the processes that a run had started, when it is killed, and the folders that it used."""
    for needed in (debian, dynoxide, ministack):
        needed()
    environment = {name: value for name, value in os.environ.items() if name != "ONCEWARD_RUN"}
    run = subprocess.Popen(
        [sys.executable, WORKERS / "run_of_servers.py"],
        env=environment | {"PYTHONPATH": f"{SOURCES}:{SUPPORT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    told = json.loads(run.stdout.readline())
    processes = {name: os.pidfd_open(pid) for name, pid in told["pids"].items()}
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    yield processes, told["folders"]
    for process in processes.values():
        os.close(process)


def test_servers_and_workers_of_a_killed_run_end_too(killed_run):
    processes, folders = killed_run
    assert (len(processes), len(folders)) == (6, 4)
    for name, process in processes.items():
        assert wait([process], PATIENCE), f"{name} is left"
    until(lambda: not any(map(os.path.exists, folders)))
