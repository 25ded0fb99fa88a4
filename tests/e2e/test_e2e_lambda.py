"""Messages end to end: a queue, an event source mapping, a Lambda function as a process, a ledger in DynamoDB; and its zip."""

import json
import platform
import re
import subprocess
import sys
import zipfile
from collections import Counter

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from places import ROOT, WORKERS
from printed.pages import section
from servers.needs import numbers
from waiting import until

_NUMBERS = numbers()


def test_each_order_takes_effect_once_despite_a_kill_mid_batch_failures_and_copies(
    ministack, dynoxide, table, aws, tmp_path
):
    name, ledger = f"shop-{next(_NUMBERS)}", f"dynamodb://{table}?endpoint={dynoxide.url}"
    logs = {what: str(tmp_path / what) for what in ("EFFECTS", "DELIVERIES")}
    lines = lambda what: [line.split() for line in (tmp_path / what).read_text().splitlines()]
    function = ministack.function(name, WORKERS / "lambda_orders.py", "handler", timeout=3, LEDGER=ledger, **logs)
    queue = ministack.queue(name, VisibilityTimeout=4)
    orders = [{"id": f"o{n}", "hangs": int(n == 3), "fails": 2 * (n == 5)} for n in range(8)]
    messages = [ministack.send(queue, order) for order in orders]
    mapping = ministack.mapping(function, ministack.queue_arn(queue), BatchSize=10)
    try:
        until(lambda: ministack.left(queue) == 0, told=lambda: ministack.log)
        copies = [ministack.send(queue, order) for order in orders]
        until(lambda: ministack.left(queue) == 0, told=lambda: ministack.log)
    finally:
        ministack.forget(function, mapping)
    attempts = {order: int(attempt) for order, attempt in lines("EFFECTS")}
    assert sorted(order for order, _ in lines("EFFECTS")) == [order["id"] for order in orders]
    assert [attempts[order] for order in ("o0", "o1", "o2", "o3")] == [1, 1, 1, 2]  # recorded before the kill, and not
    assert attempts["o5"] >= 3
    given = Counter(message for (message,) in lines("DELIVERIES"))
    assert min(given[message] for message in messages) >= 2  # all came again after the kill
    assert set(copies) <= given.keys()
    once = Once(ledger)
    done = sorted(record.key for record, _ in once.ledger.records("orders:", status=COMPLETED))
    once.close()
    assert done == [f"orders:{order['id']}" for order in orders]


PAGE = section("docs/how-to/deploy.md", "The zip of a Lambda function")
FUNCTION, BYTECODE = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
HANDLER = """
from onceward import Once
from onceward.aws import on_sqs

once = Once("memory:")

@once(key="order.id")
def charge(order: dict) -> dict:
    return {"charged": order["id"]}

def handler(event, context):
    return charge(event)
"""
# -S: no site-packages. All but the standard library must come from the zip.
CALL = """
import sys
sys.path[:0] = sys.argv[1:]
sys.dont_write_bytecode = True
import app, json, onceward
print(json.dumps([app.handler({"id": 7}, None), onceward.__file__]))
"""


def run(block, folder, wheel):
    """Run a block of the page with this Python, on this tree."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        command = line.replace("--python-version 3.13", f"--python-version {here}")
        command = re.sub(r"(?<=manylinux2014_)\w+", platform.machine(), command)
        if line.startswith("pip "):
            command = re.sub(r"'?\bonceward\b(\[\w+\])?'?$", rf"--quiet '{wheel}\1'", f"{sys.executable} -m {command}")
        command = re.sub(r"^python ", f"{sys.executable} ", command)
        subprocess.run(command, shell=True, cwd=folder, check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_function_runs_from_its_zip(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels", ROOT]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    (tmp_path / "app.py").write_text(HANDLER)
    run(FUNCTION.replace("$ python -m zipfile", f"{BYTECODE}$ python -m zipfile"), tmp_path, wheel)
    task = tmp_path / "task"
    with zipfile.ZipFile(tmp_path / "function.zip") as archive:
        archive.extractall(task)
        assert not [one for one in archive.namelist() if "onceward/cli/" in one]
    command = [sys.executable, "-I", "-S", "-c", CALL, str(task)]
    answer, file = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (answer, file) == ({"charged": 7}, str(task / "onceward" / "__init__.py"))
    assert list((task / "onceward" / "__pycache__").glob("once.*.pyc"))
