"""The pytest plugin, in real runs of pytest: what users write, and what they read when it fails."""

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PLUGIN = "onceward.testing.pytest_plugin"
ROOT = Path(__file__).parents[3]
SHOP = """
from onceward import Once, current

once = Once("sqlite:////nowhere/at/all/orders.db")


class Bank:
    def __init__(self):
        self.charges = []

    def charge(self, order, key=None):
        self.charges.append(order)
        return f"receipt of {order}"

    async def charge_async(self, order, key=None):
        return self.charge(order)


@once(key="order.id")
def charge(order: dict, bank) -> str:
    return bank.charge(order["id"], key=current().key("charge"))


@once(key="order.id")
def careless(order: dict, bank) -> str:
    return bank.charge(order["id"])


@once(key="order.id")
async def charge_async(order: dict, bank) -> str:
    return await bank.charge_async(order["id"], key=current().key("charge"))
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest on a file of tests in a project of its own, and return what it prints and whether it passed."""

    def run(tests, *options, plugins=(), **files):
        (tmp_path / "shop.py").write_text(SHOP)
        (tmp_path / "test_shop.py").write_text(textwrap.dedent(tests))
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        given = [f"-p{name}" for name in (PLUGIN, *plugins)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *given, *options, "test_shop.py"],
            cwd=tmp_path,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout + done.stderr, done.returncode == 0

    return run


def test_a_failure_tells_the_run_that_failed(run):
    told, passed = run("""
        from shop import Bank, careless

        def test_asks_the_tool(crashes):
            for crash in crashes:
                bank = crash.downstream(Bank())
                crash.deliver(careless, {"id": "order-1"}, bank)
                crash.happened_once()

        def test_asks_the_fake(crashes):
            for crash in crashes:
                bank = crash.downstream(Bank())
                crash.deliver(careless, {"id": "order-1"}, bank)
                assert bank.charges == ["order-1"]
    """)
    assert not passed
    assert "2 failed" in told
    assert "Bank.charge('order-1') happened twice instead of once" in told
    told = told.partition("short test summary")[0]  # which repeats it whole in CI
    assert told.count("This run: the worker is killed right after Bank.charge('order-1').") == 3
    assert told.count("onceward: run ") == 2
    assert "redelivered after the lease:" in told


def test_the_fixtures_once_and_clock_are_a_ledger_that_needs_no_waiting(run):
    told, passed = run("""
        import pytest
        from onceward import Busy

        def test_a_lease_ends(once, clock):
            claim = once.acquire("order-1")
            with pytest.raises(Busy):
                once.acquire("order-1")
            clock.advance(61)
            assert once.acquire("order-1").attempt == 2

        def test_crashes_takes_the_same_once(once, crashes):
            @once(key="number")
            def handle(number: int, mail) -> None:
                mail(number)

            for crash in crashes:
                crash.deliver(handle, 1, crash.downstream(lambda number: None))
                crash.happened_once(may_repeat=["<lambda>"])
    """)
    assert passed, told


def test_a_fixture_turns_guards_off(run):
    told, passed = run(
        """
        from shop import Bank, careless

        def test_asked(once_off):
            bank = Bank()
            careless({"id": "order-1"}, bank)
            careless({"id": "order-1"}, bank)
            assert len(bank.charges) == 2
        """,
        "--strict-markers",
    )
    assert passed, told


ASYNC = """
import pytest

from onceward.testing import pytest_plugin
from shop import Bank, charge_async

{mark}
@pytest.mark.parametrize("order", ["a", "b", "c", "d"])
async def test_an_order_is_charged_once(crashes, order):
    for crash in crashes:
        bank = crash.downstream(Bank(), by="key")
        assert await crash.deliver_async(charge_async, {{"id": order}}, bank) == f"receipt of {{order}}"
        crash.happened_once()
    assert crashes.runs > 20
"""


def test_it_works_with_pytest_asyncio(run):
    scope = "-oasyncio_default_fixture_loop_scope=function"
    told, passed = run(ASYNC.format(mark="@pytest.mark.asyncio"), scope, plugins=["asyncio"])
    assert passed, told
    assert "4 passed" in told


def test_an_entry_point_registers_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"onceward": PLUGIN}
    assert not any(one.startswith("pytest") for one in project["dependencies"])
