"""Crash tests whose workers are processes that SIGKILL ends."""

import asyncio
import os
import sqlite3

import pytest

from onceward import Claim, Once, current
from onceward.testing import Crashes, Mishap

shop = Once("sqlite:////nowhere/at/all/orders.db")
ORDER = {"id": "order-1"}


class Bank:
    """A downstream in a file: other processes see it."""

    def __init__(self, path):
        self.path = path

    def charge(self, order, key=None):
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS charges (id, pid)")
            connection.execute("INSERT INTO charges VALUES (?, ?)", (order, os.getpid()))
        return order

    @property
    def charges(self):
        with sqlite3.connect(self.path) as connection:
            return connection.execute("SELECT id, pid FROM charges").fetchall()


@shop(key="order.id")
def right(order: dict, bank) -> str:
    return bank.charge(order["id"], key=current().key("charge"))


@shop(key="order.id")
async def right_async(order: dict, bank) -> str:
    return bank.charge(order["id"], key=current().key("charge"))


@shop(key="order.id")
def in_steps(order: dict, bank, claim: Claim) -> str:
    claim.step("charge", bank.charge, order["id"], key=claim.key("charge"))
    return claim.step("mail", bank.charge, "a letter", key=claim.key("mail"))


@shop(key="order.id")
def wrong(order: dict, bank) -> str:
    return bank.charge(order["id"])


@pytest.mark.parametrize("handler", [right, right_async, in_steps])
def test_right_handlers_pass_with_real_kills(handler, tmp_path):
    with Crashes(real=True) as crashes:
        for crash in crashes:
            bank = crash.downstream(Bank(tmp_path / f"{crashes.runs}.db"), by="key")
            assert crash.deliver(handler, ORDER, bank) in {"order-1", "a letter"}
            crash.happened_once()
            assert [order for order, _ in bank.charges] == ["order-1", "a letter"][: len(bank.charges)]
            assert os.getpid() not in {pid for _, pid in bank.charges}
    assert crashes.runs >= 8


def test_a_real_kill_finds_an_effect_that_happens_twice(tmp_path):
    with pytest.raises(AssertionError, match="happened twice instead of once") as met, Crashes(real=True) as crashes:
        for crash in crashes:
            crash.deliver(wrong, ORDER, crash.downstream(Bank(tmp_path / f"{crashes.runs}.db")))
            crash.happened_once()
    assert "killed right after Bank.charge('order-1')" in str(met.value)


def test_a_real_kill_runs_no_finally(tmp_path):
    tidy = tmp_path / "tidy"

    def cleans_up(order, bank):
        try:
            return right(order, bank)
        finally:
            with open(tidy, "a") as file:
                file.write("tidy\n")

    for crash in Crashes(real=True, mishaps=[Mishap.KILLED_BEFORE]):
        tidy.write_text("")
        crash.deliver(cleans_up, ORDER, crash.downstream(Bank(tmp_path / f"{id(crash)}.db"), by="key"))
        deliveries = str(crash).count("→")
        assert len(tidy.read_text().splitlines()) == deliveries - (crash.mishap != "no mishap")


def test_what_a_process_raises_or_cannot_send_is_told(tmp_path):
    @shop(key="order.id", name="raises", final=(ValueError,))
    def raises(order: dict) -> None:
        raise ValueError("no such card")

    for crash in Crashes(real=True, mishaps=()):
        crash.deliver(raises, ORDER)
        assert isinstance(crash.error, ValueError)
    with pytest.raises(TypeError, match="Let it return what pickle takes"), Crashes(real=True, mishaps=()) as crashes:
        for crash in crashes:
            crash.deliver(lambda: right(ORDER, Bank(tmp_path / "bank.db")) and (lambda: None))


def test_in_an_event_loop_real_kills_are_refused():
    async def main():
        with Crashes(real=True) as crashes:
            for crash in crashes:
                await crash.deliver_async(right_async, ORDER, None)

    with pytest.raises(RuntimeError, match="processes of their own"):
        asyncio.run(main())
