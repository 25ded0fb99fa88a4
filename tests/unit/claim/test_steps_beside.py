"""Steps beside each other, and beside the end of their handler or of their claim."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

import onceward
from onceward import Claim, LeaseLost, Once, OncewardError
from onceward.results.step_entries import LONGEST
from onceward.stores.memory import MemoryStore
from step_scripts import Script, Smtp, record, step

pytestmark = pytest.mark.sampled(form=1)


def test_a_message_sent_within_a_step_is_refused_and_after_it_is_not(once, form):
    """A later attempt does not enter the step, and would not send it."""
    told = []

    def parts(claim):
        def send():
            told.append(claim.send("https://shop.example/hooks", "hello"))

        def sends():
            with pytest.raises(OncewardError, match="within a step"):
                send()
            with ThreadPoolExecutor(1) as bare, pytest.raises(OncewardError, match="without the handler's context"):
                bare.submit(send).result()

        yield step("mail", sends)
        send()
        raise Smtp  # so nothing is sent

    with pytest.raises(Smtp):
        Script(once, form, parts)()
    assert len(told) == 1


class SlowStore(MemoryStore):
    """Counts its swaps. Each takes a moment, in which others can ask."""

    swaps = 0

    def swap(self, write, seen):
        self.swaps += 1
        yield onceward.core.drivers.Sleep(0.01)
        return (yield from super().swap(write, seen))


def test_steps_side_by_side_share_their_writes_and_take_no_more_room_than_there_is(effects):
    store = SlowStore()

    @Once(store)(key="n", name="place")
    async def place(n, claim: Claim):
        async def one(number):
            await asyncio.sleep(0)
            effects.append(number)
            return "x" * 40

        made = [claim.step_async(("mail", number), one, number) for number in range(n)]
        return [type(one).__name__ for one in await asyncio.gather(*made, return_exceptions=True)]

    assert set(asyncio.run(place(20))) == {"str"}
    assert sorted(effects) == list(range(20))
    assert store.swaps < 10
    effects.clear()
    kinds = asyncio.run(place(300))
    assert set(kinds) == {"str", "OncewardError"}
    assert len(effects) == kinds.count("str")  # the others did not run
    assert len(store.records["place:300"].steps) <= LONGEST


class GatedStore(MemoryStore):
    """Sends a coroutine's request when its gate is open."""

    gates = ()

    async def exchange_async(self, request):
        if self.gates:
            await self.gates.pop(0).wait()
        return self.exchange(request)


def test_an_awaited_write_that_a_blocking_step_has_overtaken_takes_back_no_step(effects):
    once = Once(GatedStore())

    @once(key="n", name="place", lease=30)
    async def place(n, claim: Claim):
        def park(name):
            return claim.step_async(name, effects.append, name, on_lapse="park")

        if claim.attempt == 2:
            return [await park(name) for name in "abc"]
        first, second = once.store.gates = [asyncio.Event(), asyncio.Event()]
        others = [asyncio.create_task(claim.step_async("first", int))]
        await asyncio.sleep(0.01)
        others += [asyncio.create_task(park(name)) for name in "abc"]
        await asyncio.sleep(0.01)  # they wait for the first one's write
        first.set()
        await asyncio.sleep(0.1)  # one of them is about to write the beginnings of all
        claim.step("blocking", int)  # and this one does
        await asyncio.sleep(0.1)  # the two others are made, and recorded
        second.set()
        await asyncio.gather(*others)
        raise Smtp

    with pytest.raises(Smtp):
        asyncio.run(place(1))
    assert asyncio.run(place(1)) == [None, None, None]  # none is parked for a step that was made
    assert sorted(effects) == ["a", "b", "c"]


def test_a_key_is_not_given_back_while_a_step_of_it_runs(effects):
    once = Once(MemoryStore())

    @once(key="n", name="place")
    async def place(n, claim: Claim):
        begun, late = asyncio.Event(), asyncio.Event()

        async def charge():
            begun.set()
            await late.wait()
            effects.append("charge")

        charging = asyncio.create_task(claim.step_async("charge", charge))
        await begun.wait()
        for end in (claim.release_async, claim.park_async):
            with pytest.raises(OncewardError, match=r"while its step 'charge' runs"):
                await end("later")
        late.set()
        await charging
        await claim.step_async("last", claim.park_async, "later")  # of its own accord, a step can

    with pytest.raises(LeaseLost):
        asyncio.run(place(1))
    assert effects == ["charge"]
    assert '"charge"' in once.store.records["place:1"].steps


@pytest.mark.parametrize("moment", [0.0, 0.02])
async def test_no_step_begins_after_its_handler_has_failed(effects, moment):
    class Slow(MemoryStore):
        def swap(self, write, seen):
            if write.status == "RELEASED":
                yield onceward.core.drivers.Sleep(0.05)
            return (yield from super().swap(write, seen))

    @Once(Slow())(key="n", name="place")
    async def place(n, claim: Claim):
        async def late():
            await asyncio.sleep(moment)
            with pytest.raises(OncewardError, match=r"its handler has ended|was ended before"):
                await claim.step_async("mail", effects.append, claim.attempt)

        lates.append(asyncio.create_task(late()))
        raise Smtp

    lates = []
    with pytest.raises(Smtp):
        await place(1)
    await lates[0]
    assert effects == []


def test_a_handler_that_fails_beside_an_endless_step_stays_claimed(once, clock, monkeypatch):
    claims = []

    @once(key="n", name="place")
    def place(n, claim: Claim):
        claims.append(claim)
        begun = Event()
        threads.append(threading.Thread(target=claim.step, args=("endless", lambda: begun.set() or goes_on.wait(30))))
        threads[0].start()
        begun.wait(30)
        raise Smtp

    def waits(seconds, sleep=time.sleep):
        if threading.get_ident() != mine:  # a thread that another test has left, such as a recorder
            return sleep(seconds)
        claims[0].extend()
        return clock.advance(20)

    goes_on, threads, mine = Event(), [], threading.get_ident()
    monkeypatch.setattr("onceward.core.drivers.time.sleep", waits)
    with pytest.raises(Smtp):
        place(1)
    assert record(once).status == "IN_PROGRESS"
    goes_on.set()
    threads[0].join()


def test_of_two_threads_with_one_name_one_makes_the_step(effects):
    def slow():
        time.sleep(0.002)  # lets the other thread run
        return time.monotonic()

    once = Once(MemoryStore(), clock=slow)
    with once.claim("1") as claim, ThreadPoolExecutor(2) as pool:
        made = [pool.submit(claim.step, "mail", effects.append, 1) for _ in range(2)]
        errors = [type(one.exception()) for one in made]
    assert effects == [1]
    assert sorted(map(str, errors)) == sorted(map(str, (type(None), ValueError)))


class Cut:
    """A handler whose step goes on in a thread when its task is cancelled because another step has failed."""

    def __init__(self, effects):
        self.goes_on, self._effects = Event(), effects

    async def place(self, n, claim: Claim):
        begun = asyncio.Event()

        async def slow():
            work = lambda: self.goes_on.wait(30) and self._effects.append("slow")
            self.running = asyncio.get_running_loop().run_in_executor(None, work)
            begun.set()
            await asyncio.shield(self.running)

        async def fails():
            await begun.wait()
            raise Smtp

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(claim.step_async("slow", slow))
                group.create_task(claim.step_async("fails", fails))
        except* Smtp:
            raise Smtp from None


@pytest.mark.parametrize(("options", "status"), [({}, "IN_PROGRESS"), ({"on_error": "park"}, "PARKED")])
async def test_a_key_is_not_given_back_while_work_of_a_cancelled_step_may_go_on(effects, options, status):
    once, cut = Once(MemoryStore()), Cut(effects)
    with pytest.raises(Smtp):
        await once(key="n", name="place", **options)(cut.place)(1)
    assert (once.store.records["place:1"].status, effects) == (status, [])
    cut.goes_on.set()
    await cut.running
    assert effects == ["slow"]


@pytest.mark.parametrize("on_lapse", ["retry", "park"])
def test_a_step_that_outlives_its_handler_does_not_open_the_completed_key_again(once, effects, on_lapse):
    def slow():
        begun.set()
        goes_on.wait(30)
        effects.append("slow")

    @once(key="n", name="place")
    def place(n, claim: Claim):
        late.append(threads.submit(claim.step, "slow", slow, on_lapse=on_lapse))
        begun.wait(30)
        return "done"

    begun, goes_on, late = Event(), Event(), []
    with ThreadPoolExecutor(1) as threads:
        assert place(1) == "done"
        completed = record(once)
        goes_on.set()
    with pytest.raises(LeaseLost, match="record its step 'slow'"):
        late[0].result()
    assert (effects, record(once), completed.status) == (["slow"], completed, "COMPLETED")


def test_a_thread_that_gives_a_key_back_while_it_is_completed_does_not_open_it_again(once, monkeypatch):
    claim = once.acquire("k", name="place")

    def late(*_, **__):
        monkeypatch.undo()
        with pytest.raises(LeaseLost):
            claim.release("too slow")

    monkeypatch.setattr("onceward.outbox.sender.send_soon", late)
    claim.send("https://shop.example/hooks", "hello")
    claim.complete(5)
    held = record(once, "place:k")
    assert (held.status, held.unsent is None) == ("COMPLETED", False)


def test_a_step_that_ends_its_claim_does_not_open_the_key_again(once):
    claim = once.acquire(1, name="place")
    with pytest.raises(LeaseLost, match="record its step 'last'"):
        claim.step("last", claim.complete)
    assert record(once).status == "COMPLETED"
