"""Checkpoints: what is added is claimed, flushed once and recorded together, or given back together. In both forms."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.processes import PATIENCE, workers
from onceward import Busy, KeyMissing, LeaseLost, Mismatch, Once, OncewardError, Parked, ResultNotRecorded, StoreError
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.testing.faults import Faults, at, fail_after, fail_before, randomly, settling, when
from tables import each

pytestmark = pytest.mark.sampled(form=1, seed=3)

NAME = "sink"


class Refused(Exception):
    pass


class Sink:
    """What a checkpoint writes to: it keeps each flush, fails when told to, and knows what was acknowledged."""

    def __init__(self):
        self.flushes, self.times, self.done = [], [], []
        self.error = None
        self.during = lambda: None

    def write(self, items):
        self.during()
        if self.error is not None:
            raise self.error
        self.times.append(time.monotonic())
        self.flushes.append(list(items))

    async def write_async(self, items):
        await asyncio.sleep(0)
        self.write(items)

    async def done_async(self, items):
        self.done.extend(items)


class Form:
    def until(self, condition):
        """Wait for ``condition()``, letting what runs beside go on."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            self.sleep(0.01)


class Blocking(Form):
    """``with once.checkpoint(...)``."""

    @contextlib.contextmanager
    def open(self, once, sink, **options):
        made = once.checkpoint(sink.write, **{"key": "item.id", "name": NAME, "on_done": sink.done.extend, **options})
        with made as found:
            yield found

    sleep = staticmethod(time.sleep)


class Awaiting(Form):
    """``async with once.checkpoint(...)``, driven from outside so that both forms share their tests."""

    def __init__(self):
        self.runner = asyncio.Runner()

    @contextlib.contextmanager
    def open(self, once, sink, **options):
        made = once.checkpoint(
            sink.write_async, **{"key": "item.id", "name": NAME, "on_done": sink.done_async, **options}
        )
        run = self.runner.run

        class Facade:
            def add(self, item):
                return run(found.add(item))

            def flush(self):
                return run(found.flush())

        found = run(made.__aenter__())
        try:
            yield Facade()
        except BaseException as error:
            run(made.__aexit__(type(error), error, error.__traceback__))
            raise
        run(made.__aexit__(None, None, None))

    def sleep(self, seconds):
        self.runner.run(asyncio.sleep(seconds))


@pytest.fixture(params=[Blocking, Awaiting])
def form(request):
    made = request.param()
    yield made
    if isinstance(made, Awaiting):
        made.runner.close()


@pytest.fixture
def once():
    return Once("memory:")


@pytest.fixture
def sink():
    return Sink()


def items(*ids):
    return [{"id": number} for number in ids]


def filled(form, once, sink, *ids, **options):
    """Add items to a checkpoint of its own, and leave its block."""
    with form.open(once, sink, **options) as checkpoint:
        return [checkpoint.add(item) for item in items(*ids)]


def status(once, number):
    found = once.ledger.show(f"{NAME}:{number}")
    return found[0].status


def statuses(once):
    return {record.key.removeprefix(f"{NAME}:"): record.status for record, _ in once.ledger.records()}


def attempts(once):
    return {record.attempts for record, _ in once.ledger.records()}


def test_leaving_the_block_flushes_in_order_and_completes_all(once, sink, form):
    seen = []

    def done(items):
        seen.append(statuses(once))

    with form.open(once, sink, on_done=done) as checkpoint:
        assert [checkpoint.add(item) for item in items(3, 1, 2)] == ["added"] * 3
        assert (sink.flushes, statuses(once)) == ([], dict.fromkeys("123", IN_PROGRESS))
    assert sink.flushes == [items(3, 1, 2)]
    assert seen == [dict.fromkeys("123", COMPLETED)]
    with pytest.raises(OncewardError, match="closed"):
        checkpoint.add({"id": 4})
    with pytest.raises(OncewardError, match="closed"):
        checkpoint.flush()
    assert filled(form, once, sink, 1, 2) == ["replayed"] * 2
    assert sink.flushes == [items(3, 1, 2)]


def test_a_key_buffered_already_is_flushed_once_and_both_are_told_done(once, sink, form):
    with form.open(once, sink) as checkpoint:
        assert checkpoint.add({"id": 1, "delivery": "a"}) == "added"
        assert checkpoint.add({"id": 1, "delivery": "b"}) == "buffered"
    assert sink.flushes == [[{"id": 1, "delivery": "a"}]]
    assert [item["delivery"] for item in sink.done] == ["a", "b"]


def test_a_buffered_key_with_another_fingerprint_is_a_mismatch_alone(once, sink, form):
    with form.open(once, sink, fingerprint=True) as checkpoint:
        checkpoint.add({"id": 1, "sum": 5})
        with pytest.raises(Mismatch):
            checkpoint.add({"id": 1, "sum": 6})
        assert checkpoint.add({"id": 1, "sum": 5}) == "buffered"
    assert sink.flushes == [[{"id": 1, "sum": 5}]]
    with form.open(once, sink, fingerprint="item.sum") as checkpoint:
        with pytest.raises(Mismatch):
            checkpoint.add({"id": 1, "sum": 6})


def test_it_flushes_at_a_count_of_new_items_and_when_told(once, sink, form):
    with form.open(once, sink, count=2) as checkpoint:
        for item in items(1, 1, 1):
            checkpoint.add(item)
        assert sink.flushes == []
        for item in items(2, 1, 3):
            checkpoint.add(item)
        assert (sink.flushes, sink.done) == ([items(1, 2)], items(1, 1, 1, 2))
        checkpoint.flush()
        assert status(once, 3) == COMPLETED
        checkpoint.add({"id": 4})
    assert sink.flushes == [items(1, 2), items(3), items(4)]


@each(
    ("sizes", "flushed"),
    [((4, 6), [[0, 1]]), ((4, 7), [[0]]), ((11,), [[0]]), ((4, 11), [[0], [1]]), ((4, 5), []), ((10,), [[0]])],
)
def test_it_flushes_before_there_are_too_many_bytes_and_when_it_is_full(form, sizes, flushed):
    sink = Sink()
    with form.open(Once("memory:"), sink, key=lambda text: text[:1], bytes=10) as checkpoint:
        for number, size in enumerate(sizes):
            checkpoint.add(str(number) * size)
        assert [[int(text[0]) for text in flush] for flush in sink.flushes] == flushed


@each(("item", "size"), [(b"12345", 5), ("é12", 4), ({"id": 1}, 8), (bytearray(b"123"), 3)])
def test_bytes_are_those_of_bytes_of_utf8_and_of_json(form, item, size):
    sink = Sink()
    for least, flushes in ((size, [[item]]), (size + 1, [])):
        sink.flushes.clear()
        with form.open(Once("memory:"), sink, key=lambda item: 1, bytes=least) as checkpoint:
            checkpoint.add(item)
            assert sink.flushes == flushes


def test_what_cannot_be_counted_is_refused_unless_size_counts_it(once, sink, form):
    strange = {"id": 1, "what": object()}
    with form.open(once, sink, bytes=10) as checkpoint:
        with pytest.raises(TypeError, match="size="):
            checkpoint.add(strange)
        assert statuses(once) == {}
    with form.open(once, sink, bytes=10, size=lambda item: 10) as checkpoint:
        checkpoint.add(strange)
        assert sink.flushes == [[strange]]


@pytest.mark.slow
def test_it_flushes_when_the_oldest_item_is_old_enough(sink, form):
    with form.open(Once("memory:"), sink, age=1.0) as checkpoint:
        for flushed in ([1, 2], [3, 4]):
            added = time.monotonic()
            checkpoint.add({"id": flushed[0]})
            form.sleep(0.1)
            checkpoint.add({"id": flushed[1]})
            form.until(lambda flushed=flushed: len(sink.done) == flushed[1])
            assert sink.flushes[-1] == items(*flushed)
            assert sink.times[-1] - added >= 1.0


def test_the_age_is_counted_on_the_owners_clock(sink, form):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock, lease=10_000)
    with form.open(once, sink, age=5_000) as checkpoint:  # a timer's real seconds are never over here
        checkpoint.add({"id": 1})
        clock.advance(4_000)
        checkpoint.add({"id": 2})
        assert sink.flushes == []
        clock.advance(1_000)
        checkpoint.add({"id": 3})
        form.until(lambda: sink.flushes)
        assert sink.flushes[0] in (items(1, 2, 3), items(1, 2))  # the second by a timer that a busy machine starts late


@pytest.mark.parametrize("call", ["add", "flush", "leave", "raise"])
def test_an_error_of_a_flush_by_age_is_raised_by_the_next_call(once, sink, form, call):
    sink.error = Refused("no")
    with pytest.raises((Refused, ZeroDivisionError)) as caught:
        with form.open(once, sink, age=0.05) as checkpoint:
            checkpoint.add({"id": 1})
            form.until(lambda: statuses(once) == {"1": RELEASED})
            if call == "add":
                checkpoint.add({"id": 2})
            elif call == "flush":
                checkpoint.flush()
            elif call == "raise":
                raise ZeroDivisionError
    assert statuses(once) == {"1": RELEASED}
    assert type(caught.value) is Refused or "Refused('no')" in caught.value.__notes__[0]


def test_a_failing_flush_gives_all_back_counts_an_attempt_and_raises(once, sink, form):
    sink.error = Refused("no")
    with pytest.raises(Refused):
        filled(form, once, sink, 1, 2, 3)
    assert statuses(once) == dict.fromkeys("123", RELEASED)
    assert attempts(once) == {1}
    assert {record.error for record, _ in once.ledger.records()} == {"Refused: no"}
    assert sink.done == []
    sink.error = None
    assert filled(form, once, sink, 1, 2, 3) == ["added"] * 3
    assert sink.flushes == [items(1, 2, 3)]
    assert attempts(once) == {2}


def test_after_a_failure_nothing_is_claimed_any_more(once, sink, form):
    sink.error = Refused("no")
    with pytest.raises(OncewardError, match="failed before") as caught:
        with form.open(once, sink, count=2) as checkpoint:
            checkpoint.add({"id": 1})
            with pytest.raises(Refused):
                checkpoint.add({"id": 2})
            sink.error = None
            with pytest.raises(OncewardError, match="failed before"):
                checkpoint.add({"id": 3})
            with pytest.raises(OncewardError, match="failed before"):
                checkpoint.flush()
    assert isinstance(caught.value.__cause__, Refused)
    assert statuses(once) == {"1": RELEASED, "2": RELEASED}
    assert sink.flushes == []


def test_when_a_crowded_buffer_fails_to_flush_the_new_item_is_not_claimed(once, sink, form):
    sink.error = Refused("no")
    with pytest.raises(Refused):
        filled(form, once, sink, 1, 2, bytes=10)
    assert statuses(once) == {"1": RELEASED}


def test_an_item_that_cannot_be_added_disturbs_no_other(sink, form):
    once = Once(Faults(MemoryStore(), lambda ask: None))
    held = once.acquire(2, name=NAME)
    once.acquire(3, name=NAME).park("by hand")
    with form.open(once, sink) as checkpoint:
        checkpoint.add({"id": 1})
        for item, error in (
            ({"id": 2}, Busy),
            ({"id": 3}, Parked),
            ({"number": 4}, KeyMissing),
            ({"id": ""}, KeyMissing),
        ):
            with pytest.raises(error):
                checkpoint.add(item)
        once.store.plan = lambda ask: fail_before(StoreError)
        with pytest.raises(StoreError):
            checkpoint.add({"id": 6})
        once.store.plan = lambda ask: None
        checkpoint.add({"id": 5})
    assert sink.flushes == [items(1, 5)]
    assert not held.lost


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError])
def test_an_error_in_the_block_gives_all_back_and_counts_no_attempt(once, sink, form, kind):
    with pytest.raises(kind):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            checkpoint.add({"id": 2})
            raise kind
    assert statuses(once) == {"1": RELEASED, "2": RELEASED}
    assert attempts(once) == {0}
    assert sink.flushes == []
    assert filled(form, once, sink, 1) == ["added"]


def test_when_they_cannot_be_given_back_error_of_block_goes_on_with_note(sink, form):
    once = Once(Faults(MemoryStore(), when(settling, fail_before(StoreError))))
    with pytest.raises(ZeroDivisionError) as caught:
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            raise ZeroDivisionError
    assert "given back" in caught.value.__notes__[0]


@pytest.mark.slow
def test_claims_are_renewed_while_their_items_wait_and_while_the_flush_runs(once, sink, form):
    sink.during = lambda: time.sleep(1.2)
    with form.open(once, sink, lease=0.9) as checkpoint:
        checkpoint.add({"id": 1})
        form.sleep(1.2)
        with pytest.raises(Busy):
            once.acquire(1, name=NAME)
    assert sink.flushes == [items(1)]
    assert statuses(once) == {"1": COMPLETED}


def test_when_claim_was_lost_nothing_is_flushed_and_others_are_given_back(sink, form):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock)
    with pytest.raises(LeaseLost, match="sink:1"):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            clock.advance(40)
            checkpoint.add({"id": 2})
            clock.advance(40)
            rival = once.acquire(1, name=NAME)
    assert sink.flushes == []
    assert statuses(once) == {"1": IN_PROGRESS, "2": RELEASED}
    assert rival.attempt == 2
    rival.complete()


def test_claims_lost_while_flush_runs_are_told_and_others_are_recorded(sink, form):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock)
    rival = []

    def during():
        clock.advance(40)
        rival.append(once.acquire(1, name=NAME))

    with pytest.raises(LeaseLost, match="sink:1"):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            clock.advance(30)
            checkpoint.add({"id": 2})
            sink.during = during
    assert sink.flushes == [items(1, 2)]
    assert sink.done == items(2)
    assert statuses(once) == {"1": IN_PROGRESS, "2": COMPLETED}
    rival[0].complete("theirs")


@pytest.mark.parametrize(("fault", "error"), [(StoreError, ResultNotRecorded), (KeyboardInterrupt, KeyboardInterrupt)])
def test_after_a_flush_that_could_not_be_recorded_nothing_more_is_claimed(sink, form, fault, error):
    once = Once(Faults(MemoryStore(), when(settling, fail_before(fault))))
    with pytest.raises(OncewardError, match="failed before"):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            with pytest.raises(error):
                checkpoint.flush()
            with pytest.raises(OncewardError, match="failed before"):
                checkpoint.add({"id": 2})
    assert (sink.flushes, statuses(once)) == ([items(1)], {"1": IN_PROGRESS})


def test_an_error_about_many_keys_names_the_others(sink, form):
    clock = ManualClock()
    with pytest.raises(LeaseLost) as caught:
        with form.open(Once(MemoryStore(clock), clock=clock), sink) as checkpoint:
            for item in items(1, 2, 3, 4, 5):
                checkpoint.add(item)
            clock.advance(100)
    assert caught.value.__notes__ == ["onceward: the same holds for sink:2, sink:3, sink:4, and 1 more"]


def test_when_the_store_stays_away_after_a_flush_the_caller_is_told(sink, form):
    once = Once(Faults(MemoryStore(), when(settling, fail_before())))
    with pytest.raises(ResultNotRecorded) as caught:
        filled(form, once, sink, 1, 2, lease=0.4, heartbeat=0)
    assert (sink.flushes, sink.done) == ([items(1, 2)], [])
    assert caught.value.key == "sink:1"
    assert caught.value.__notes__ == ["onceward: the same holds for sink:2"]


def test_one_key_that_the_store_refuses_to_record_harms_no_other(sink, form):
    def refuses(ask):
        return settling(ask) and any(write.key == "sink:2" for write in ask.writes)

    once = Once(Faults(MemoryStore(), when(refuses, fail_before(StoreError))))
    with pytest.raises(ResultNotRecorded, match="sink:2"):
        filled(form, once, sink, 1, 2, 3)
    assert statuses(once) == {"1": COMPLETED, "2": IN_PROGRESS, "3": COMPLETED}
    assert sink.done == items(1, 3)


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda fault: fault.kind.name)
def test_one_fault_anywhere_changes_nothing(form, fault):
    for number in range(1, 6):
        once, sink = Once(Faults(MemoryStore(), at({number: fault}))), Sink()
        filled(form, once, sink, 1, 2, 3, count=2)
        assert sink.flushes == [items(1, 2), items(3)]
        assert len(once.store.asked) > number
        assert statuses(once) == dict.fromkeys("123", COMPLETED)


@pytest.mark.parametrize("seed", range(8))
def test_faults_at_random_neither_lose_nor_double_anything(sink, form, seed):
    once = Once(Faults(MemoryStore(), randomly(seed, 0.25)))
    for _ in range(2):
        answers = filled(form, once, sink, *range(10), count=3)
    once.store.plan = lambda ask: None
    assert sorted(item["id"] for flush in sink.flushes for item in flush) == list(range(10))
    assert sorted(item["id"] for item in sink.done) == list(range(10))
    assert answers == ["replayed"] * 10
    assert statuses(once) == {str(number): COMPLETED for number in range(10)}


def test_trouble_in_giving_back_is_a_note_at_the_error_of_the_flush(sink, form):
    sink.error = Refused("no")
    once = Once(Faults(MemoryStore(), when(settling, fail_before(StoreError))))
    with pytest.raises(Refused) as caught:
        filled(form, once, sink, 1)
    assert "failed" in caught.value.__notes__[0]


def test_what_on_done_raises_is_logged_and_changes_nothing(once, sink, form, caplog):
    def fails(items):
        raise Refused("ack")

    filled(form, once, sink, 1, on_done=fails)
    assert statuses(once) == {"1": COMPLETED}
    assert "on_done of a checkpoint raised" in caplog.text
    assert "Refused: ack" in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_flush_leaves_its_keys_claimed_to_the_end_of_their_leases(once, sink, form, kind):
    def interrupt():
        raise kind

    sink.during = interrupt
    with pytest.raises(kind) as caught:  # which keeps the claims alive
        filled(form, once, sink, 1, lease=0.5)
    assert statuses(once) == {"1": IN_PROGRESS}
    assert once.acquire(1, name=NAME, on_busy=PATIENCE).attempt == 2
    assert caught.value is not None


def test_an_interrupt_while_a_key_is_claimed_gives_everything_back(sink, form):
    store = Faults(MemoryStore(), lambda ask: None)
    once = Once(store)
    with pytest.raises(KeyboardInterrupt):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            store.plan = at({len(store.asked) + 1: fail_after(KeyboardInterrupt)})
            checkpoint.add({"id": 2})
    assert statuses(once) == {"1": RELEASED, "2": RELEASED}
    assert attempts(once) == {0}


def test_a_cancelled_flush_leaves_its_keys_claimed_and_takes_no_more(once):
    begun = asyncio.Event()

    async def write(items):
        begun.set()
        await asyncio.sleep(60)

    async def work():
        async with once.checkpoint(write, key="item.id", name=NAME) as checkpoint:
            await checkpoint.add({"id": 1})

    async def main():
        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert statuses(once) == {"1": IN_PROGRESS}


def written(sink):
    assert max(len(flush) for flush in sink.flushes) <= 7
    return sorted(item["id"] for flush in sink.flushes for item in flush)


def test_threads_share_a_checkpoint(once, sink):
    with once.checkpoint(sink.write, key="item.id", name=NAME, count=7, age=0.01) as checkpoint:
        with ThreadPoolExecutor(6) as pool:
            for n in range(0, 60, 10):
                pool.submit(lambda n=n: [checkpoint.add({"id": number}) for number in range(n, n + 30)])
    assert written(sink) == list(range(80))
    assert set(statuses(once).values()) == {COMPLETED}


def test_tasks_share_a_checkpoint_and_leave_none_behind(once, sink):
    async def main():
        async with once.checkpoint(sink.write_async, key="item.id", name=NAME, count=7, age=0.01) as checkpoint:
            await asyncio.gather(*(checkpoint.add({"id": number % 80}) for number in range(180)))
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()
    assert written(sink) == list(range(80))


def test_a_plain_flush_runs_in_a_thread_beside_the_event_loop(once):
    names = []

    def write(items):
        names.append(threading.current_thread())

    async def main():
        async with once.checkpoint(write, key="item.id", name=NAME) as checkpoint:
            await checkpoint.add({"id": 1})

    asyncio.run(main())
    assert names != [threading.current_thread()]
    assert len(names) == 1
    assert statuses(once) == {"1": COMPLETED}


def test_what_returns_something_to_await_is_awaited_or_refused(once, sink):
    def write(items):
        return sink.write_async(items)

    async def main():
        async with once.checkpoint(write, key="item.id", name=NAME) as checkpoint:
            await checkpoint.add({"id": 1})

    asyncio.run(main())
    assert sink.flushes == [items(1)]
    with pytest.raises(TypeError, match="await"):
        with once.checkpoint(write, key="item.id", name=NAME) as checkpoint:
            checkpoint.add({"id": 2})
    assert status(once, 2) == RELEASED


def test_a_coroutine_function_needs_async_with(once, sink):
    for options in ({}, {"on_done": sink.done_async}):
        with pytest.raises(TypeError, match="async with"):
            with once.checkpoint(sink.write if options else sink.write_async, key="item.id", name=NAME, **options):
                pass


def test_flush_cannot_use_its_own_checkpoint(once, sink, form):
    if isinstance(form, Awaiting):

        async def write(items):
            await opened[0].add({"id": 2})

        async def work():
            async with once.checkpoint(write, key="item.id", name=NAME) as checkpoint:
                opened.append(checkpoint)
                await checkpoint.add({"id": 1})

        run = lambda: form.runner.run(work())
    else:

        def run():
            with once.checkpoint(lambda items: opened[0].add({"id": 2}), key="item.id", name=NAME) as checkpoint:
                opened.append(checkpoint)
                checkpoint.add({"id": 1})

    opened = []
    with pytest.raises(OncewardError, match="cannot use it"):
        run()
    assert statuses(once) == {"1": RELEASED}


def test_without_a_thread_for_the_age_the_next_add_looks_at_it(sink, monkeypatch):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with once.checkpoint(sink.write, key="item.id", name=NAME, age=5) as checkpoint:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        checkpoint.add({"id": 1})
        clock.advance(6)
        checkpoint.add({"id": 2})
        assert sink.flushes == [items(1, 2)]


@each(
    ("options", "error"),
    [
        ({"count": 0}, "count=0"),
        ({"count": True}, "count=True"),
        ({"count": 1.5}, "count=1.5"),
        ({"bytes": -1}, "bytes=-1"),
        ({"age": 0}, "age=0"),
        ({"age": "1"}, "age='1'"),
        ({"age": float("nan")}, "age=nan"),
        ({"lease": -1}, "lease=-1"),
        ({"key": "`1`"}, "same for every input"),
        ({"fingerprint": 5}, "fingerprint=5"),
        ({"nonsense": 5}, "unknown option nonsense"),
        ({"name": "a b"}, "name='a b'"),
    ],
)
def test_options_that_are_not_valid_are_refused_before_anything_runs(once, options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        once.checkpoint(lambda items: None, **{"key": "item.id", "name": NAME, **options})


@pytest.mark.slow
def test_killed_before_or_after_flush_items_come_again_and_none_is_lost(tmp_path):
    ledger, log = tmp_path / "ledger.db", tmp_path / "log"
    once = Once(f"sqlite:///{ledger}")
    with workers("checkpoint_worker.py") as start:
        for moment in ("buffered", "flushed"):
            process = start(ledger, log, moment, 0.8)
            assert process.stdout.readline() == f"{moment}\n"
            process.kill()
            process.wait()
            assert statuses(once) == dict.fromkeys("0123", IN_PROGRESS)
            assert len(log.read_text().splitlines() if log.exists() else []) == 4 * (moment == "flushed")
            time.sleep(1.0)  # the leases lapse
        last = start(ledger, log, "never", 0.8)
        output, _ = last.communicate(timeout=PATIENCE)
    assert output.splitlines() == ["added"] * 4 + ["done"]
    # The flush is an external effect: a kill between it and its record makes it happen again, and nothing else does.
    assert sorted(log.read_text().splitlines()) == sorted(["0", "1", "2", "3"] * 2)
    assert statuses(once) == dict.fromkeys("0123", COMPLETED)
    assert attempts(once) == {3}
    once.close()
