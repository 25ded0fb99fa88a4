"""Runs the page on workflow engines, in an environment that has them: the effect is made, and then its engine loses the answer."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from dbos import DBOS, SetWorkflowID
from temporalio.testing import ActivityEnvironment

from pages import run

document, folder, *killed = sys.argv[1:]
CHARGED = Path(folder, "charged")


def charge(order):
    with CHARGED.open("a") as log:
        log.write(f"{order}\n")
    return f"charged {order}"


def charged():
    return CHARGED.read_text().split()


page = run(document, {"bank": SimpleNamespace(charge=charge)}, {"sqlite:///flows.db": f"sqlite:///{folder}/flows.db"})


def temporal():
    """An activity is tried again as Temporal does it: the same ids, and the next attempt."""
    environment = ActivityEnvironment()
    for attempt in (1, 2):
        environment.info = dataclasses.replace(environment.info, attempt=attempt)
        assert environment.run(page["charge_activity"], "t1") == "charged t1"
    environment.info = dataclasses.replace(environment.info, activity_id="another")
    environment.run(page["charge_activity"], "t1")
    assert charged() == ["t1", "t1"], charged()


def dbos(*, is_killed):
    """A process is killed after the effect, before DBOS has recorded the step; the next one recovers the workflow."""
    once = page["once"]
    if is_killed:
        using = once.using
        once.using = lambda **options: SimpleNamespace(run=lambda *call: (using(**options).run(*call), os._exit(9)))
    DBOS(
        config={
            "name": "shop",
            "system_database_url": f"sqlite:///{folder}/dbos.db",
            "log_level": "CRITICAL",
            "application_version": "1",
        }
    )
    DBOS.launch()
    with SetWorkflowID("w-1"):
        assert page["buy"]("d1") == "charged d1"
    DBOS.destroy()


def prefect():
    """A task fails after its effect, and Prefect tries it again."""
    once, tries = page["once"], []
    using = once.using

    def run_and_fail(options, call):
        value = using(**options).run(*call)
        tries.append(value)
        if len(tries) == 1:
            raise ConnectionError("the answer is lost")
        return value

    once.using = lambda **options: SimpleNamespace(run=lambda *call: run_and_fail(options, call))
    assert page["shop"]("p1") == "charged p1"
    assert len(tries) == 2
    once.using = using


if killed:
    dbos(is_killed=True)
temporal()
done = subprocess.run([sys.executable, __file__, document, folder, "dbos"])
assert done.returncode == 9, done
dbos(is_killed=False)
assert charged() == ["t1", "t1", "d1"], charged()
prefect()
assert charged() == ["t1", "t1", "d1", "p1"], charged()
print("all once")
