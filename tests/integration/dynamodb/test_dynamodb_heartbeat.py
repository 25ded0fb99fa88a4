"""Leases that are kept although a client, a neighbour or another ledger makes trouble. In real time, on a real server."""

import asyncio
import threading
import time

import aiobotocore.session
import pytest

from onceward import Busy, Once, current
from onceward.stores.dynamodb import open_table
from servers.proxy import Fault, Proxy

LEASE = 3.0
LONG = 2 * LEASE


class Workers:
    """Handlers in threads of their own, and what became of them."""

    def __init__(self):
        self.lost = {}
        self.errors = {}
        self._threads = []

    def start(self, once, *keys):
        for key in keys:
            self._threads.append(threading.Thread(target=self._work, args=(once, key)))
            self._threads[-1].start()

    def _work(self, once, key):
        try:
            once.run(key, self._handle, key)
        except Exception as error:
            self.errors[key] = error

    def _handle(self, key):
        time.sleep(LONG)
        self.lost[key] = current().lost

    def join(self):
        for thread in self._threads:
            thread.join()


def ledger(url):
    return Once(url, lease=LEASE).using(name="n")


def test_a_coroutine_through_a_client_of_aiobotocore_keeps_its_claim(proxy, url, table):
    other = ledger(url)
    ran = []

    async def handle(who):
        ran.append(who)
        await asyncio.sleep(LONG)
        return current().lost

    async def main():
        session = aiobotocore.session.get_session()
        async with session.create_client("dynamodb", region_name="eu-west-1", endpoint_url=proxy.url) as client:
            once = ledger(open_table(table, client=client))
            first = asyncio.create_task(once.run_async("k", handle, "first"))
            await asyncio.sleep(LONG - 1)
            with pytest.raises(Busy):
                await other.run_async("k", handle, "second")
            return await first

    assert asyncio.run(main()) is False
    assert ran == ["first"]


@pytest.mark.nightly
def test_a_record_that_cannot_be_read_harms_no_neighbours(dynoxide, url, table, caplog):
    once, other = ledger(url), ledger(url)
    once.run("warm", int)
    workers = Workers()
    keys = [f"k{number}" for number in range(8)]
    workers.start(once, *keys)
    time.sleep(0.5)
    dynoxide.ask("PutItem", TableName=table, Item={"key": {"S": "n:k3"}, "status": {"S": "whatever"}})
    time.sleep(LONG - 1.5)
    for key in keys:
        if key != "k3":
            with pytest.raises(Busy):
                other.run(key, int)
    workers.join()
    assert workers.lost == {key: key == "k3" for key in keys}
    assert set(workers.errors) == {"k3"}
    assert sum("k3: its lease cannot be renewed" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.nightly
def test_a_ledger_that_hangs_does_not_starve_another(dynoxide, url, proxy):
    second = Proxy(dynoxide.port)
    try:
        hanging = ledger(url)
        healthy = ledger(f"dynamodb://{dynoxide.table('ledger-healthy')}?endpoint={second.url}")
        for once in (hanging, healthy):
            once.run("warm", int)
        workers = Workers()
        workers.start(hanging, "a")
        time.sleep(0.3)
        workers.start(healthy, "b")
        time.sleep(0.3)
        proxy.rule = lambda seen: Fault(delay_reply=4)
        time.sleep(LONG - 1)
        with pytest.raises(Busy):
            healthy.run("b", int)
        proxy.clear()
        workers.join()
        assert workers.lost["b"] is False
        assert "b" not in workers.errors
    finally:
        second.stop()
