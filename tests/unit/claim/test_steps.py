"""Steps: made once over all attempts, and what each says of an attempt that ended inside it. Each test runs in both forms."""

import asyncio
import os
import sqlite3
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import pytest

import onceward
from onceward import (
    Claim,
    LeaseLost,
    Made,
    Once,
    OncewardError,
    Parked,
    ResultWarning,
    StepNotRecorded,
    StoreError,
)
from onceward.claim.stepping import handler_steps
from onceward.claim.stepping.writer import StepWriter
from onceward.results.step_entries import LONGEST
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before, when

pytestmark = pytest.mark.sampled(form=1)


@dataclass
class Charge:
    id: str
    cents: int


class Smtp(Exception):
    pass


class Stopped(BaseException):
    """Ends an attempt as a crash does: the key stays claimed."""


class Script:
    """A handler whose parts a test gives: a generator function that yields ``(name, function, *arguments)`` and options."""

    def __init__(self, once, form, parts, **options):
        self.form, self.parts = form, parts
        options = {"key": "n", "name": "place"} | options
        if form == "called":

            @once(**options)
            def place(n, claim: Claim):
                try:
                    self._run(claim, claim.step).send(None)  # it awaits nothing
                except StopIteration as end:
                    return end.value

        else:

            @once(**options)
            async def place(n, claim: Claim):
                return await self._run(claim, claim.step_async)

        self.place = place

    def __call__(self, n=1):
        return self.place(n) if self.form == "called" else asyncio.run(self.place(n))

    async def _run(self, claim, make):
        parts = self.parts(claim)
        go_on, told = parts.send, None
        try:
            while True:
                given, options = go_on(told)
                try:
                    made = make(*given, **options)
                    go_on, told = parts.send, made if self.form == "called" else await made
                except (Exception, KeyboardInterrupt) as error:
                    go_on, told = parts.throw, error
        except StopIteration as end:
            return end.value


def step(*given, **options):
    return given, options


def only(*steps):
    """Return the parts of a handler that only makes these steps."""

    def parts(claim):
        made = None
        for one in steps:
            made = yield one
        return made

    return parts


@pytest.fixture(params=["called", "awaited"])
def form(request):
    return request.param


@pytest.fixture
def effects():
    return []


def record(once, key="place:1"):
    return once.store.records[key]


def failing(*steps):
    """Return the parts of a handler that makes these steps and then fails."""

    def parts(claim):
        yield from only(*steps)(claim)
        raise Smtp

    return parts


def test_a_recorded_step_does_not_run_again(once, form, effects):
    def pay(card) -> Charge:
        effects.append(card)
        return Charge("ch_1", 5)

    def parts(claim):
        charge = yield step("charge", pay, "4242")
        yield step("mail", lambda: 1 / (claim.attempt - 1))
        return charge

    place = Script(once, form, parts)
    with pytest.raises(ZeroDivisionError):
        place()
    assert '"name":"charge"' in record(once).steps
    assert record(once).worker in record(once).steps
    assert record(once).needs == "steps"  # so that code which does not know steps leaves the key alone
    assert place() == Charge("ch_1", 5)
    assert effects == ["4242"]


def crashed(once, form, clock, parts, **options):
    """Run one attempt that ends as a crash does, and let its lease lapse."""
    with pytest.raises(Stopped):
        Script(once, form, parts, **options)()
    clock.advance(61)


def stopping(effects, *values):
    def function(*_):
        effects.append(values)
        raise Stopped

    return function


@pytest.mark.parametrize("options", [{}, {"on_lapse": lambda *_: onceward.NOT_MADE}])
def test_a_step_that_an_attempt_ended_in_runs_again(once, form, clock, effects, options):
    crashed(once, form, clock, only(step("charge", stopping(effects))))
    Script(once, form, only(step("charge", effects.append, "made", **options)))()
    assert effects == [(), "made"]


def asking(answer, asked):
    def find(key, *arguments):
        asked.append((key, *arguments))
        return answer

    return find


def test_a_function_is_asked_only_when_an_earlier_attempt_may_have_made_it(once, form, clock, effects):
    asked, keys = [], []

    def parts(claim):
        keys.append(claim.key("stock"))
        return (yield step("stock", stopping(effects), "apple", on_lapse=asking(Made("reserved"), asked)))

    crashed(once, form, clock, parts)
    assert asked == []
    assert Script(once, form, parts)() == "reserved"
    assert asked == [(keys[0], "apple")]
    assert len(effects) == 1


def test_a_function_is_asked_after_an_exception_and_after_unpark_too(once, form):
    asked = []
    place = Script(once, form, only(step("stock", lambda: 1 / 0, on_lapse=asking(Made(3), asked))), on_error="park")
    with pytest.raises(ZeroDivisionError):
        place()
    assert asked == []
    once.ledger.unpark("place:1")  # its attempts begin at 0 again
    assert place() == 3
    assert len(asked) == 1


def test_another_answer_is_refused_before_the_step(once, form, clock, effects):
    crashed(once, form, clock, only(step("stock", stopping(effects))))
    with pytest.raises(TypeError, match="Made"):
        Script(once, form, only(step("stock", stopping(effects), on_lapse=lambda key: None)))()
    assert len(effects) == 1


def test_a_parking_step_that_an_attempt_ended_in_parks_the_key(once, form, clock, effects):
    parts = only(step("mail", stopping(effects), on_lapse="park"))
    crashed(once, form, clock, parts)
    with pytest.raises(Parked, match="'mail'"):
        Script(once, form, parts)()
    assert (record(once).status, "mail" in record(once).error, len(effects)) == ("PARKED", True, 1)


def test_a_parking_step_that_raises_parks_the_key(once, form):
    with pytest.raises(ZeroDivisionError):
        Script(once, form, only(step("mail", lambda: 1 / 0, on_lapse="park")))()
    assert (record(once).status, "mail" in record(once).error) == ("PARKED", True)


def test_a_parking_step_that_was_surely_not_made_is_retried(once, form):
    def parts(claim):
        sure = {"on_lapse": "park", "not_made": (ZeroDivisionError,)}
        return (yield step("mail", lambda: 1 / (claim.attempt - 1), **sure))

    place = Script(once, form, parts)
    with pytest.raises(ZeroDivisionError):
        place()
    assert record(once).status == "RELEASED"
    assert place() == 1


def test_a_handler_that_goes_on_after_a_stop_is_parked_all_the_same(once, form, clock, effects):
    crashed(once, form, clock, only(step("mail", stopping(effects), on_lapse="park")))

    def parts(claim):
        try:
            yield step("mail", effects.append, 2, on_lapse="park")
        except Parked:
            pass
        with pytest.raises(Parked):
            yield step("other", effects.append, 3)
        return "as if all were well"

    with pytest.raises(Parked):
        Script(once, form, parts)()
    assert record(once).status == "PARKED"
    assert len(effects) == 1


@pytest.mark.parametrize("ends", ["complete", "transaction"])
def test_a_stopped_attempt_cannot_be_completed_by_hand(tmp_path, ends):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n")

    def mail():
        raise Smtp

    first = once.acquire("k")
    with pytest.raises(Smtp):
        first.step("mail", mail, on_lapse="park")
    first.release()
    with pytest.raises(Parked), once.claim("k") as claim:
        with pytest.raises(Parked):
            claim.step("mail", pytest.fail, on_lapse="park")
        if ends == "complete":
            claim.complete("done")
        else:
            with claim.transaction(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)):
                pass
    with pytest.raises(Parked, match="may have been made"):
        once.run("k", pytest.fail)


def test_two_steps_of_one_name_are_refused_and_tuples_tell_them_apart(once, form, effects):
    def parts(claim):
        for n in range(3):
            yield step(("mail", n), effects.append, n)
        with pytest.raises(ValueError, match="mail"):
            yield step(("mail", 1), effects.append, 1)

    Script(once, form, parts)()
    assert effects == [0, 1, 2]


def test_a_result_that_cannot_be_recorded_parks_a_later_attempt(once, form, effects):
    parts = failing(step("open", lambda: effects.append(1) or threading.Lock()))
    with pytest.raises(Smtp), pytest.warns(ResultWarning, match="'open'"):
        Script(once, form, parts)()
    with pytest.raises(Parked, match="'open'"), warnings.catch_warnings():
        Script(once, form, parts)()
    assert effects == [1]


def test_a_result_that_no_longer_decodes_parks_the_key(once, form, effects):
    def old() -> str:
        return "text"

    def new() -> Charge:
        effects.append(1)

    for function, error in ((old, Smtp), (new, Parked)):
        with pytest.raises(error):
            Script(once, form, failing(step("charge", function)))()
    assert "'charge'" in record(once).error
    assert effects == []


def test_code_may_change_between_attempts(once, form, effects):
    a, b, c = (step(name, effects.append, name) for name in "abc")
    with pytest.raises(Smtp):
        Script(once, form, failing(a, b))()
    Script(once, form, only(c, b))()
    assert effects == ["a", "b", "c"]
    assert all(f'"{name}"' in record(once).steps for name in "abc")


def written(ask):
    return any(write.steps is not None for write in ask.writes)


def faulty(clock, fault, times=10**6):
    """Return a ledger that fails to write steps so many times."""
    left, kept = [times], MemoryStore(clock)

    def plan(ask):
        if not written(ask) or not left[0]:
            return None
        left[0] -= 1
        return fault

    return Once(Faults(kept, plan), clock=clock), kept


def test_a_step_whose_result_is_not_recorded_starts_no_later_step(form, clock, effects):
    once, store = faulty(clock, fail_before(onceward.StoreError))

    def parts(claim):
        with pytest.raises(StepNotRecorded) as caught:
            yield step("charge", effects.append, 1)
        assert (caught.value.step, caught.value.result) == ("charge", None)
        yield step("mail", effects.append, 2)

    with pytest.raises(StepNotRecorded):
        Script(once, form, parts)()
    assert effects == [1]
    assert store.records["place:1"].status == "IN_PROGRESS"  # until its lease ends: nobody repeats it at once


@pytest.mark.parametrize("options", [{}, {"on_lapse": "park"}], ids=["its result", "the note that it begins"])
def test_a_lost_reply_to_a_steps_write_is_no_lost_write(form, clock, effects, options):
    once, store = faulty(clock, fail_after(), times=1)
    Script(once, form, only(step("mail", effects.append, 1, **options)))()
    held = store.records["place:1"]
    assert (effects, held.status, held.steps.count("mail")) == ([1], "COMPLETED", 1)


def test_a_step_without_a_name_is_refused_before_it_runs(once, effects):
    for name in ("", None, (), ("mail", "")):
        with pytest.raises(ValueError, match="cannot name a step"), once.claim("1") as claim:
            claim.step(name, effects.append, 1)
    assert effects == []


def test_a_zombies_step_does_not_begin(once, form, clock, effects):
    def parts(claim):
        clock.advance(61)
        yield step("charge", effects.append, 1)

    with pytest.raises(LeaseLost, match="'charge'"):
        Script(once, form, parts)()
    assert effects == []


def test_a_parking_step_does_not_begin_after_a_note_that_took_the_lease(form, clock, effects):
    class Stalled(MemoryStore):
        def swap(self, write, seen):
            reply = yield from super().swap(write, seen)
            clock.advance(61)
            return reply

    once = Once(Stalled(clock=clock), clock=clock)
    with pytest.raises(LeaseLost, match="begin its step 'mail'"):
        Script(once, form, only(step("mail", effects.append, 1, on_lapse="park")))()
    assert effects == []


def test_a_zombies_step_is_refused_and_told(once, form, clock, effects):
    def late():
        clock.advance(61)
        Script(once, "called", only(step("charge", effects.append, "the successor's")))()

    def parts(claim):
        yield step("charge", late)

    with pytest.raises(LeaseLost):
        Script(once, form, parts)()
    assert effects == ["the successor's"]
    assert record(once).status == "COMPLETED"


def test_a_step_renews_the_lease(once, form, clock):
    def parts(claim):
        for n in range(4):
            yield step(n, clock.advance, 40)
            assert claim.remaining > 55

    Script(once, form, parts)()


def test_what_does_not_fit_is_refused_before_it_runs(once, form, effects):
    def parts(claim):
        yield step("big", lambda: "x" * 15_400)
        with pytest.raises(OncewardError, match="no room"):
            yield step("n" * 199, effects.append, 1)

    Script(once, form, parts)()
    assert effects == []


@pytest.mark.parametrize("text", ["x" * 20_000, "ü" * 9_000, "\u0000" * 3_000])
def test_a_large_result_has_a_record_of_its_own_and_is_fetched_when_asked_for(once, form, effects, text):
    def parts(claim):
        got = yield step("big", lambda: effects.append("big") or text)
        got = (yield step("small", lambda: got[:3])), got
        if claim.attempt == 1:
            raise Smtp
        return got

    place = Script(once, form, parts)
    with pytest.raises(Smtp):
        place()
    assert len(record(once).steps.encode()) <= LONGEST
    (kept,) = set(once.store.records) - {"place:1"}
    assert kept.startswith("place:step-")
    assert kept in record(once).steps
    assert place() == (text[:3], text)
    assert effects == ["big"]


def test_a_large_result_that_is_gone_parks_the_key_and_never_runs_again(once, form, effects):
    parts = failing(step("big", lambda: effects.append(1) or "x" * 20_000))
    with pytest.raises(Smtp):
        Script(once, form, parts)()
    (kept,) = set(once.store.records) - {"place:1"}
    once.ledger.clear(kept)
    with pytest.raises(Parked, match=r"'big'.*gone"):
        Script(once, form, parts)()
    assert (effects, record(once).status) == ([1], "PARKED")


def test_a_zombies_large_result_does_not_replace_its_successors(once, form, clock):
    def parts(claim):
        def theirs():
            clock.advance(61)
            other = once.acquire(1, name="place")
            assert other.step("big", lambda: "theirs" * 5_000) == "theirs" * 5_000
            other.release()
            return "mine" * 5_000

        yield step("big", theirs)

    with pytest.raises(LeaseLost):
        Script(once, form, parts)()

    def again(claim):
        return (yield step("big", lambda: "again"))

    assert Script(once, form, again)() == "theirs" * 5_000


def test_a_store_that_refuses_a_large_result_gets_the_step_without_it(form, clock, effects):
    refuses = lambda ask: ask.verb == "insert" and any(":step-" in write.key for write in ask.writes)
    once = Once(Faults(MemoryStore(clock), when(refuses, fail_before(onceward.StoreError))), clock=clock)

    def parts(claim):
        assert (yield step("big", lambda: effects.append(1) or "x" * 20_000)) == "x" * 20_000
        yield step("next", effects.append, 2)
        raise Smtp

    with pytest.raises(Smtp), pytest.warns(ResultWarning, match="'big'.*refused"):
        Script(once, form, parts)()
    with pytest.raises(Parked, match="'big'"):
        Script(once, form, parts)()
    assert effects == [1, 2]


def test_clear_and_retry_delete_large_results_with_their_key_and_step(once, form):
    place = Script(once, form, failing(*(step(name, lambda: "x" * 20_000) for name in "ab")))
    for _ in range(2):
        with pytest.raises(Smtp):
            place()
    assert len(once.store.records) == 3
    once.ledger.retry("place:1", "b")
    assert len(once.store.records) == 2
    with pytest.raises(Smtp):
        place()
    once.ledger.clear("place:1")
    assert once.store.records == {}


def test_steps_are_sealed_as_results_are(once, form, effects):
    seal = (lambda data: bytes(255 - one for one in data)), (lambda data: bytes(255 - one for one in data))
    parts = failing(step("charge", lambda: effects.append(1) or "secret-4242"))
    for _ in range(2):
        with pytest.raises(Smtp):
            Script(once, form, parts, seal=seal)()
    assert "secret" not in record(once).steps
    with pytest.raises(Parked, match="it is sealed"):
        Script(once, form, parts)()
    assert (record(once).status, effects) == ("PARKED", [1])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_seal_that_cannot_open_a_step_for_now_leaves_the_key_for_a_later_attempt(once, form, effects, swallows):
    away = []

    def unseal(data):
        if away:
            raise OSError("the key service is away")
        return data

    def again(claim):
        try:
            yield step("charge", effects.append, 2)
        except StoreError:
            if not swallows:
                raise
        return "done"

    seal = (lambda data: data, unseal)
    with pytest.raises(Smtp):
        Script(once, form, failing(step("charge", effects.append, 1)), seal=seal)()
    away.append(True)
    with pytest.raises(StoreError, match="the key service is away") as error:
        Script(once, form, again, seal=seal, final=(OncewardError,))()
    assert (error.value.transient, record(once).status) == (True, "RELEASED")
    away.clear()
    assert Script(once, form, again, seal=seal)() == "done"
    assert effects == [1]


def struck_once(monkeypatch, owner, name):
    """Let the first call of a function be interrupted."""
    real, count = getattr(owner, name), []

    def interrupted(*given):
        count.append(1)
        if len(count) == 1:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(owner, name, interrupted)


def test_an_interrupt_right_after_a_step_lets_it_be_recorded(once, effects, monkeypatch):
    struck_once(monkeypatch, handler_steps.called, "failure")
    with pytest.raises(KeyboardInterrupt):
        Script(once, "called", only(step("charge", effects.append, 1)))()
    assert effects == [1]
    assert "charge" in record(once).steps


def test_an_interrupt_between_a_steps_write_and_its_return_holds_nobody_up(once, form, effects, monkeypatch):
    struck_once(monkeypatch, StepWriter, "_leave")

    def parts(claim):
        try:
            yield step("charge", effects.append, 1)
        except KeyboardInterrupt:
            began = claim.clock()
        yield step("mail", effects.append, 2)
        assert claim.clock() == began  # nobody waited

    Script(once, form, parts, lease=1)()
    assert effects == [1, 2]


def test_a_message_sent_within_a_step_is_refused_and_after_it_is_not(once, form):
    """A later attempt does not enter the step, and would not send it."""
    told = []

    def parts(claim):
        def sends():
            with pytest.raises(OncewardError, match="within a step"):
                claim.send("https://shop.example/hooks", "hello")

        yield step("mail", sends)
        told.append(claim.send("https://shop.example/hooks", "hello"))
        raise Smtp  # so nothing is sent

    with pytest.raises(Smtp):
        Script(once, form, parts)()
    assert len(told) == 1


def in_a_bare_thread(function):
    """Call a function in a thread that has not copied its starter's context."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def test_a_message_of_a_bare_thread_within_a_step_is_refused(once):
    claim, other, told = once.acquire("k"), once.acquire("other"), []

    def send(claim):
        told.append(claim.send("https://shop.example/hooks", "hello"))

    def in_thread():
        with pytest.raises(OncewardError, match="without the handler's context"):
            send(claim)

    def in_step():
        in_a_bare_thread(in_thread)
        send(other)  # of another key, whose steps do not run

    claim.step("first", in_step)
    in_a_bare_thread(lambda: (claim.step("second", lambda: None), send(claim)))
    ready, over = Event(), Event()
    with ThreadPoolExecutor(1) as threads:
        runs = threads.submit(claim.step, "beside", lambda: (ready.set(), over.wait(60)))
        ready.wait(60)
        try:
            send(claim)  # the handler, while a step of another thread runs
        finally:
            over.set()
        runs.result()
    assert len(told) == 3


def test_a_fresh_life_of_a_key_has_no_steps_of_the_last_one(once, form, clock, effects):
    place = Script(once, form, only(step("charge", effects.append, 1)), retention=100)
    place()
    clock.advance(200)
    place()
    assert effects == [1, 1]


class SlowStore(MemoryStore):
    """Counts its swaps. Each takes a moment, in which others can ask."""

    def __init__(self):
        super().__init__()
        self.swaps = 0

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
    assert store.records["place:20"].steps.count('"done"') == 0  # the default is left out
    effects.clear()
    kinds = asyncio.run(place(300))
    assert set(kinds) == {"str", "OncewardError"}
    assert len(effects) == kinds.count("str")  # the others did not run
    assert len(store.records["place:300"].steps) <= LONGEST


class GatedStore(MemoryStore):
    """Sends a coroutine's request when its gate is open."""

    def __init__(self):
        super().__init__()
        self.gates = []

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
        others = [asyncio.create_task(claim.step_async("first", effects.append, "first"))]
        await asyncio.sleep(0.01)
        others += [asyncio.create_task(park(name)) for name in "abc"]
        await asyncio.sleep(0.01)  # they wait for the first one's write
        first.set()
        await asyncio.sleep(0.1)  # one of them is about to write the beginnings of all
        claim.step("blocking", effects.append, "blocking")  # and this one does
        await asyncio.sleep(0.1)  # the two others are made, and recorded
        second.set()
        await asyncio.gather(*others)
        raise Smtp("later")

    with pytest.raises(Smtp):
        asyncio.run(place(1))
    assert [(name, effects.count(name)) for name in "abc"] == [("a", 1), ("b", 1), ("c", 1)]
    assert asyncio.run(place(1)) == [None, None, None]  # none is parked for a step that was made
    assert len(effects) == 5


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


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.07])
def test_no_step_begins_after_its_handler_has_failed(effects, moment):
    class Slow(MemoryStore):
        def swap(self, write, seen):
            for part in range(2):
                if write.status == "RELEASED":
                    yield onceward.core.drivers.Sleep(0.05)
                if part == 0:
                    reply = yield from super().swap(write, seen)
            return reply

    @Once(Slow())(key="n", name="place")
    async def place(n, claim: Claim):
        async def late():
            await asyncio.sleep(moment)
            with pytest.raises(OncewardError, match=r"its handler has ended|was ended before"):
                await claim.step_async("mail", effects.append, claim.attempt)
            effects.append("refused")

        lates.append(asyncio.create_task(late()))
        raise Smtp

    async def run():
        with pytest.raises(Smtp):
            await place(1)
        await lates[0]

    lates = []
    asyncio.run(run())
    assert effects == ["refused"]


def test_a_handler_that_fails_beside_an_endless_step_stays_claimed(once, clock, monkeypatch):
    claims = []

    @once(key="n", name="place")
    def place(n, claim: Claim):
        claims.append(claim)
        begun = threading.Event()
        threads.append(threading.Thread(target=claim.step, args=("endless", lambda: begun.set() or goes_on.wait(30))))
        threads[0].start()
        begun.wait(30)
        raise Smtp

    def waits(seconds, sleep=time.sleep):
        if threading.get_ident() != mine:  # a thread that another test has left, such as a recorder
            return sleep(seconds)
        claims[0].extend()
        return clock.advance(20)

    goes_on, threads, mine = threading.Event(), [], threading.get_ident()
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


@pytest.mark.parametrize(
    ("options", "status"), [({}, "IN_PROGRESS"), ({"on_error": "park"}, "PARKED"), ({"final": (Smtp,)}, "COMPLETED")]
)
def test_a_key_is_not_given_back_while_work_of_a_cancelled_step_may_go_on(effects, options, status):
    async def run():
        with pytest.raises(Smtp):
            await once(key="n", name="place", **options)(cut.place)(1)
        assert (once.store.records["place:1"].status, effects) == (status, [])
        cut.goes_on.set()
        await cut.running

    once, cut = Once(MemoryStore()), Cut(effects)
    asyncio.run(run())
    assert effects == ["slow"]


@pytest.mark.parametrize("on_lapse", ["retry", "park"])
def test_a_step_that_outlives_its_handler_does_not_open_the_completed_key_again(once, effects, on_lapse):
    @once(key="n", name="place")
    def place(n, claim: Claim):
        begun = threading.Event()

        def slow():
            begun.set()
            goes_on.wait(30)
            effects.append("slow")

        def beside():
            with pytest.raises(LeaseLost, match="record its step 'slow'"):
                claim.step("slow", slow, on_lapse=on_lapse)
            refused.append(claim)

        threads.append(threading.Thread(target=beside))
        threads[0].start()
        begun.wait(30)
        return "done"

    goes_on, threads, refused = threading.Event(), [], []
    assert place(1) == "done"
    completed = record(once)
    goes_on.set()
    threads[0].join()
    assert (len(refused), effects, record(once), completed.status) == (1, ["slow"], completed, "COMPLETED")


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


@pytest.mark.parametrize(("end", "status"), [("complete", "COMPLETED"), ("release", "RELEASED"), ("park", "PARKED")])
def test_a_step_that_ends_its_claim_does_not_open_the_key_again(once, end, status):
    claim = once.acquire("k", name="place")
    with pytest.raises(LeaseLost, match="record its step 'last'"):
        claim.step("last", lambda: getattr(claim, end)(None))
    assert record(once, "place:k").status == status


def test_a_final_exception_of_a_parking_step_is_the_outcome(once, form, effects):
    def mail():
        effects.append(1)
        raise Smtp("unknown address")

    place = Script(once, form, only(step("mail", mail, on_lapse="park")), final=(Smtp,))
    for _ in range(2):
        with pytest.raises(Smtp, match="unknown"):
            place()
    assert (record(once).status, effects) == ("COMPLETED", [1])


def test_a_child_forked_in_a_step_records_nothing(once):
    def forks():
        child = os.fork()
        return os.waitpid(child, 0)[1] if child else "child"

    @once(key="n", name="place")
    def place(n, claim: Claim):
        try:
            return claim.step("fork", forks)
        except onceward.ForkedClaim:
            os._exit(7)

    assert os.waitstatus_to_exitcode(place(1)) == 7
    assert '"child"' not in record(once).steps


def test_wrong_options_are_refused_before_anything_runs(once, form, effects):
    def parts(claim):
        for options in ({"on_lapse": "wait"}, {"not_made": (Smtp,)}, {"on_lapse": "park", "not_made": Smtp}):
            with pytest.raises((TypeError, ValueError)):
                yield step("charge", effects.append, 1, **options)

    Script(once, form, parts)()
    assert effects == []


def test_a_coroutine_function_in_a_plain_step_is_refused(once):
    with pytest.raises(TypeError, match="step_async"), once.claim("1") as claim:
        claim.step("charge", asyncio.sleep)


def test_retry_forgets_a_step_and_those_after_it_also_of_a_completed_key(once, form, effects):
    place = Script(once, form, only(*(step(name, effects.append, name) for name in "abc")))
    place()
    once.ledger.retry("place:1", "b")
    place()
    assert effects == ["a", "b", "c", "b", "c"]


def test_retry_refuses_a_key_that_a_worker_holds(once, effects):
    with once.claim("1") as claim:
        claim.step("charge", effects.append, 1)
        with pytest.raises(onceward.Busy):
            once.ledger.retry(claim.record.key, "charge")


def test_a_parked_keys_retry_asks_a_step_that_may_have_been_made(once, form, clock, effects):
    crashed(once, form, clock, only(step("mail", stopping(effects), on_lapse="park")))
    place = Script(once, form, only(step("mail", effects.append, 2, on_lapse="park")))
    with pytest.raises(Parked):
        place()
    once.ledger.retry("place:1", "mail")  # a person has looked: it was not sent
    place()
    assert effects[-1] == 2
