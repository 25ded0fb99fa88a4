"""Every option of a policy: its default, what it refuses, and what it does."""

import threading
import time

import pytest

from onceward import Busy, Once, Parked, Policy
from onceward.stores.memory import MemoryStore
from tables import each
from timing import within


class Failure(Exception):
    pass


def failing():
    raise Failure("no")


def vanish(once, key="k", **options):
    """Claim a key as a worker that is never heard of again."""
    return once.using(**options).acquire(key, name="n")


def status(once):
    (record,) = once.store.records.values()
    return record.status


# --- values -------------------------------------------------------------------------------------------------------------


def test_the_defaults_are_safe():
    assert Policy()._asdict() == {
        "lease": 60.0,
        "heartbeat": None,
        "max_attempts": None,
        "on_busy": "raise",
        "on_lapse": "retry",
        "on_error": "release",
        "final": (),
        "retention": 14 * 86400.0,
        "cache": 0,
        "max_result": None,
        "seal": None,
        "keep_input": False,
        "history": True,
    }
    assert Policy().beat_every == 20.0


@each(
    ("options", "named"),
    [
        ({"lease": 10, "retention": 5}, ["retention=5", "lease=10"]),
        ({"lease": 10, "heartbeat": 10}, ["heartbeat=10", "lease=10"]),
        ({"lease": 10, "heartbeat": 11.5}, ["heartbeat=11.5", "lease=10"]),
        ({"heartbeat": -1}, ["heartbeat=-1", "lease=60.0"]),
        (
            {"max_attempts": 3, "on_error": "park", "on_lapse": "park"},
            ["max_attempts=3", 'on_error="park"', 'on_lapse="park"'],
        ),
    ],
)
def test_a_contradiction_is_refused_with_both_values_at_decorating(once, options, named):
    for make in (
        lambda: Once(MemoryStore(), **options),
        lambda: once(key="x", **options),
        lambda: once.using(**options),
        lambda: once.claim("k", **options),
        lambda: once.acquire("k", **options),
    ):
        with pytest.raises(ValueError) as refused:
            make()
        for part in named:
            assert part in str(refused.value)


@each(
    "options",
    [
        {"lease": 0},
        {"lease": -1},
        {"lease": float("inf")},
        {"lease": float("nan")},
        {"heartbeat": float("nan")},
        {"retention": float("nan")},
        {"retention": -1},
        {"retention": float("inf")},
        {"retention": 1e300},
        {"lease": 10**400},
        {"lease": 1e300},
        {"max_attempts": 0},
        {"cache": -1},
        {"max_result": -1},
        {"on_busy": "wait"},
        {"on_busy": -1},
        {"on_busy": float("nan")},
        {"on_busy": True},
        {"on_busy": None},
        {"on_lapse": "release"},
        {"on_error": "retry"},
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(options):
    (name,) = options
    with pytest.raises((ValueError, TypeError), match=f"{name}="):
        Once(MemoryStore(), **options)


@each(
    "options",
    [
        {"lease": "60"},
        {"lease": True},
        {"retention": "1d"},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"cache": None},
        {"final": Failure},
        {"final": [Failure]},
        {"final": (KeyboardInterrupt,)},
        {"final": (Failure(),)},
        {"leese": 5},
    ],
)
def test_a_value_of_another_type_is_refused(options):
    with pytest.raises(TypeError):
        Once(MemoryStore(), **options)


@each("retention", [float("inf"), 1e300])
def test_a_retention_without_end_is_written_none(retention):
    with pytest.raises(ValueError, match=r"retention=.*None is for ever"):
        Once(MemoryStore(), retention=retention)


def test_the_default_of_max_result_is_the_stores(once):
    assert once.acquire("a").policy.max_result == once.store.max_result == 256 * 1024
    assert once.acquire("b", max_result=7).policy.max_result == 7
    once.store.max_result = 10
    with pytest.warns(UserWarning, match="max_result=10"), once.claim("c") as claim:
        claim.complete("x" * 20)
    assert once.using(max_result=None, name="n").run("d", int) == 0


def test_every_guard_keeps_its_own_options(once, clock):
    strict = once(key="k", name="n", max_attempts=1)(lambda k: failing())
    lenient = once(key="k", name="n", max_attempts=5)(lambda k: failing())
    with pytest.raises(Failure):
        lenient(1)
    assert status(once) == "RELEASED"
    with pytest.raises(Parked):
        strict(1)


# --- on_busy --------------------------------------------------------------------------------------------------------------


def test_on_busy_raises_at_once_and_tells_when_to_come_back(once, clock):
    vanish(once, lease=30)
    clock.advance(10)
    with pytest.raises(Busy) as busy, once.claim("k", name="n"):
        pass
    assert busy.value.retry_after == pytest.approx(20)


def test_on_busy_skip_returns_none_and_runs_nothing(once):
    vanish(once)
    guarded = once(key="k", name="n", on_busy="skip")(lambda k: pytest.fail("it ran"))
    assert guarded("k") is None
    with pytest.raises(ValueError, match="a with block cannot be skipped, so catch Busy"):
        once.claim("k", on_busy="skip")
    with pytest.raises(ValueError, match="acquire returns a claim and nothing else, so catch Busy"):
        once.acquire("k", on_busy="skip")


def test_a_waiter_runs_the_handler_itself_when_the_run_it_waits_for_fails(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")
    started = threading.Event()
    attempts = []

    def work():
        attempts.append(threading.current_thread().name)
        if len(attempts) == 1:
            started.set()
            time.sleep(0.1)
            raise Failure
        return "mended"

    def first():
        with pytest.raises(Failure):
            once.run("k", work)

    thread = threading.Thread(target=first, name="first")
    thread.start()
    started.wait(60)
    assert once.using(on_busy=10).run("k", work) == "mended"
    thread.join()
    assert attempts == ["first", "MainThread"]


def test_a_waiter_runs_the_handler_itself_when_run_it_waits_for_lapses():
    once = Once(MemoryStore())
    vanish(once, lease=0.15)
    guarded = once(key="k", name="n", on_busy=10)(lambda k: "mine")
    assert guarded("k") == "mine"


def test_a_waiter_gives_up_with_busy_when_its_time_is_over():
    once = Once(MemoryStore(), on_busy=0.1)
    vanish(once)

    def wait(_):
        with pytest.raises(Busy), once.claim("k", name="n"):
            pass

    within(2, wait, least=0.09)


# --- on_error, on_lapse, max_attempts ---------------------------------------------------------------------------------------


def test_on_error_park_stops_after_the_first_error(once):
    parking = once.using(on_error="park")
    with pytest.raises(Failure):
        parking.run("k", failing)
    with pytest.raises(Parked) as parked:
        parking.run("k", failing)
    assert (parked.value.attempts, parked.value.last_error) == (1, "Failure: no")
    assert "unpark" in str(parked.value)


@pytest.mark.parametrize("how", ["error", "lapse"])
def test_max_attempts_parks_the_key_after_so_many(once, clock, how):
    limited = once.using(max_attempts=2, lease=10)
    for _ in range(2):
        if how == "error":
            with pytest.raises(Failure):
                limited.run("k", failing)
        else:
            limited.using(name=f"{__name__}.failing").acquire("k")
            clock.advance(11)
    with pytest.raises(Parked) as parked:
        limited.run("k", failing)
    assert parked.value.attempts == 2
    assert status(once) == "PARKED"


# --- final ----------------------------------------------------------------------------------------------------------------


class Declined(Exception):
    def __init__(self, order, *, code):
        super().__init__(f"order {order} declined")
        self.code = code


class DeclinedForGood(Declined):
    pass


def test_final_exception_is_recorded_and_raised_again_for_every_duplicate(once):
    runs = []

    @once(key="order", final=(Declined,))
    def charge(order):
        runs.append(order)
        raise DeclinedForGood(order, code=51)

    for _ in range(3):
        with pytest.raises(Declined) as declined:
            charge(7)
        assert (type(declined.value), declined.value.code, str(declined.value)) == (
            DeclinedForGood,
            51,
            "order 7 declined",
        )
    assert runs == [7]
    assert status(once) == "COMPLETED"


def test_each_duplicate_gets_a_final_exception_of_its_own(once):
    charge = once.using(final=(Failure,), cache=5)
    caught = []
    for _ in range(3):
        with pytest.raises(Failure) as failure:
            charge.run("k", failing)
        caught.append(failure.value)
    assert len({id(error) for error in caught}) == 3


def test_an_exception_that_is_not_final_is_tried_again(once):
    limited = once.using(final=(Declined,))
    with pytest.raises(Failure):
        limited.run("k", failing)
    assert status(once) == "RELEASED"


@pytest.mark.parametrize("options", [{"on_error": "park"}, {"max_attempts": 1}])
def test_a_final_exception_is_an_outcome_also_where_errors_park(once, options):
    with pytest.raises(Failure):
        once.using(final=(Failure,), **options).run("k", failing)
    assert status(once) == "COMPLETED"


# --- cache --------------------------------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    def __init__(self, clock):
        super().__init__(clock)
        self.requests = 0

    def exchange(self, request):
        self.requests += 1
        return super().exchange(request)


@pytest.fixture
def counted(clock):
    return Once(Counting(clock), clock=clock, lease=10, retention=100, cache=3)


def test_a_cached_duplicate_costs_no_request_and_is_a_fresh_object(counted):
    guarded = counted(key="k", name="n")(lambda k: {"list": [k]})
    first = guarded(1)
    first["list"].append("mutated by the caller")
    before = counted.store.requests
    again = guarded(1)
    again["list"].append("mutated by a duplicate")
    assert guarded(1) == {"list": [1]}
    assert counted.store.requests == before


def test_the_cache_respects_the_retention(counted, clock):
    runs = []

    @counted(key="k", name="n")
    def guarded(k):
        runs.append(k)

    guarded(1)
    clock.advance(50)
    guarded(1)
    clock.advance(50.1)
    guarded(1)
    assert len(runs) == 2


def test_a_replay_is_cached_for_what_is_left_of_its_retention(counted, clock):
    runs = []

    def handle(k):
        runs.append(k)

    counted(key="k", name="n", cache=0)(handle)(1)
    clock.advance(90)
    cached = counted(key="k", name="n")(handle)
    cached(1)
    clock.advance(11)
    cached(1)
    assert len(runs) == 2


def test_the_cache_never_holds_more_than_its_size(counted):
    guarded = counted(key="k", name="n")(lambda k: k)
    for number in range(20):
        guarded(number)
    before = counted.store.requests
    assert [guarded(number) for number in range(20)] == list(range(20))
    assert counted.store.requests - before >= 17


def test_the_cache_checks_the_fingerprint(counted):
    from onceward import Mismatch

    guarded = counted(key="k", name="n", fingerprint="v")(lambda k, v: v)
    assert guarded(1, "a") == guarded(1, "a") == "a"
    with pytest.raises(Mismatch):
        guarded(1, "b")


def test_failures_are_not_cached(counted):
    outcomes = iter([Failure(), None])

    def handle(k):
        error = next(outcomes)
        if error:
            raise error
        return "done"

    guarded = counted(key="k", name="n")(handle)
    with pytest.raises(Failure):
        guarded(1)
    assert guarded(1) == guarded(1) == "done"
