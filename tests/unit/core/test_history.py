"""What a record tells: its last attempts and their workers, and the origin of a call, from a message's headers on to the next message."""

import dataclasses
import os
from types import SimpleNamespace

import pytest

from onceward import Attempt, Busy, Once, Parked
from onceward.aws import on_invoke
from onceward.core import history, worker
from onceward.core.origin import CallOrigin, beginning, decoded, encoded, headers_for, provenance_in, read_origin
from onceward.core.writes import UNKNOWN
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from tables import each

TRACES = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 5)]


def nothing(*_):
    pass


class Tracing:
    """Makes spans whose trace is ``trace``."""

    trace = None
    __call__ = nothing

    def begin(self, name, key, incoming):
        acts = dict.fromkeys(("note", "link", "end", "enter", "leave"), nothing)
        return SimpleNamespace(trace=self.trace, **acts)


@dataclasses.dataclass
class Scene:
    once: Once
    clock: ManualClock
    tracing: Tracing

    @property
    def record(self):
        (record,) = self.once.store.records.values()
        return record

    def attempt(self, text="no", took=1.0, **options):
        """Make one attempt that fails, or succeeds without a text."""

        def handler():
            self.clock.advance(took)
            if text is not None:
                raise LookupError(text)

        guard = self.once.using(name="n", **options)
        if text is None:
            guard.run("k", handler)
        else:
            with pytest.raises(LookupError):
                guard.run("k", handler)
        self.clock.advance(10.0)

    def vanish(self, **options):
        """Claim the key as a worker that is never heard of again, and let its lease lapse."""
        claim = self.once.using(**options).acquire("k", name="n")
        self.clock.advance(100.0)
        return claim

    def told(self):
        return [(one.number, one.outcome, one.error) for one in self.once.ledger.attempts("n:k")]


@pytest.fixture
def scene():
    clock, tracing = ManualClock(), Tracing()
    return Scene(Once(MemoryStore(clock), clock=clock, observe=[tracing]), clock, tracing)


def test_a_first_attempt_that_succeeds_writes_no_history(scene):
    claim = scene.once.acquire("k", name="n")
    for _ in range(3):
        scene.clock.advance(20.0)
        claim.extend()
    claim.complete("done")
    assert scene.record.history is None
    (only,) = scene.once.ledger.attempts("n:k")
    assert (only.outcome, only.begin, only.end) == ("COMPLETED", scene.record.created_at, scene.clock())


def test_each_attempt_has_its_times_worker_error_and_fence(scene):
    began = scene.clock()
    scene.attempt("first", took=2.0)
    fence = scene.record.fence
    scene.attempt("second", took=3.0)
    scene.attempt(None, took=4.0)
    worker = scene.record.worker
    assert scene.once.ledger.attempts("n:k") == [
        Attempt(1, began, began + 2.0, worker, "RELEASED", "LookupError: first", fence),
        Attempt(2, began + 12.0, began + 15.0, worker, "RELEASED", "LookupError: second", fence + 1),
        Attempt(3, began + 25.0, began + 29.0, worker, "COMPLETED", None, fence + 2),
    ]


def traced(scene):
    return [one.trace for one in scene.once.ledger.attempts("n:k")]


def test_each_attempt_has_its_trace_and_none_that_of_another(scene):
    scene.tracing.trace = TRACES[0]
    scene.attempt("first")
    scene.tracing.trace = TRACES[1]
    scene.vanish()
    assert traced(scene) == TRACES[:2]
    scene.tracing.trace = None
    scene.vanish()
    scene.tracing.trace = TRACES[2]
    scene.attempt("fourth", on_error="park")
    scene.once.ledger.unpark("n:k")
    scene.tracing.trace = None
    scene.attempt(None)
    assert traced(scene) == [*TRACES[:2], None, TRACES[2], None]
    assert [outcome for _, outcome, _ in scene.told()] == ["RELEASED", "LAPSED", "LAPSED", "PARKED", "COMPLETED"]


def test_the_longest_lines_of_workers_that_vanish_fit(scene):
    scene.tracing.trace = TRACES[0]
    named = worker.NAMED.set('"' * 300)
    try:
        for number in range(12):
            claim = scene.once.using().acquire("k", name="n")
            if number % 2:
                claim.extend()
            fence = scene.record.fence
            scene.clock.advance(100.0)
            assert len(scene.record.history or "") <= history.MOST
        text = history.lapsed(scene.record._replace(fence=2**63 - 1, attempts=2**31, history=None))
    finally:
        worker.NAMED.reset(named)
    assert len(text) < history.LINE
    assert fence in {one.fence for one in scene.once.ledger.attempts("n:k")}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["no", '"quoted" \\ \n\t\x00 \ud800', "\U0001f600" * 400])
def test_the_history_is_bounded_and_drops_the_oldest(scene, text):
    scene.tracing.trace = TRACES[0]
    for _ in range(60):
        scene.attempt(text)
        assert len(scene.record.history.encode("ascii")) <= history.MOST
    numbers = [one.number for one in scene.once.ledger.attempts("n:k")]
    assert numbers == list(range(61 - len(numbers), 61))
    assert len(numbers) >= 3


def test_no_history_is_written_when_it_is_turned_off_and_what_others_wrote_stays(scene):
    scene.attempt("first", history=0)
    scene.vanish(history=0)
    assert scene.record.history is None
    scene.attempt("third")
    before = scene.once.ledger.attempts("n:k")
    scene.attempt("fourth", history=0)
    assert [one.fence for one in scene.once.ledger.attempts("n:k")] == [one.fence for one in before]
    assert (scene.record.attempts, scene.record.error) == (4, "LookupError: fourth")


def test_a_line_that_an_earlier_version_left_open_is_not_closed_by_another_attempt(scene):
    scene.attempt("first")
    store, record = scene.once.store, scene.record
    store.records["n:k"] = record._replace(fence=record.fence + 5, owner="old", lease_until=scene.clock())
    scene.attempt("third")
    first, last = scene.once.ledger.attempts("n:k")
    assert (first.error, first.end) == ("LookupError: first", None)
    assert last.error == "LookupError: third"


HERE = f"{os.uname().nodename}/{os.getpid()}"


@pytest.fixture
def once(clock):
    return Once(MemoryStore(clock), name="n", clock=clock)


def stands(once):
    return once.ledger.show("n:k")[0]


def test_a_record_has_host_and_process_of_its_claim_and_its_last_write_and_who_meets_it_is_told(once, clock):
    claim = once.acquire("k")
    with pytest.raises(Busy, match=rf"another worker \({HERE}\) holds this key") as busy:
        once.acquire("k")
    for act in (claim.extend, claim.park):
        clock.advance(5)
        act()
        assert (stands(once).worker, stands(once).updated_at) == (HERE, clock())
    assert stands(once).created_at == clock() - 10
    with pytest.raises(Parked, match=f"the last by {HERE}") as parked:
        once.acquire("k")
    assert busy.value.worker == parked.value.worker == HERE


def test_on_lambda_the_worker_is_the_function_and_its_request(once):
    async def charge(order):
        return 1

    context = SimpleNamespace(aws_request_id="5f1c", function_name="charge")
    assert on_invoke(once, key="order.id")(charge)({"id": "k"}, context) == 1
    assert stands(once).worker == "charge/5f1c"
    once.acquire("l")
    assert once.ledger.show("n:l")[0].worker == HERE


def origin_in(headers):
    return provenance_in(headers.get).origin


def test_the_first_handler_is_root_and_a_later_one_passes_it_on():
    assert headers_for("shop:1", None) == {"onceward-root": "shop:1", "onceward-parent": "shop:1"}
    first = origin_in(headers_for("shop:1", None))
    assert headers_for("payments:1", first) == {"onceward-root": "shop:1", "onceward-parent": "payments:1"}
    assert read_origin(origin_in(headers_for("payments:1", first))) == CallOrigin("shop:1", "payments:1")
    assert read_origin(origin_in({"onceward-parent": "shop:1"})) == CallOrigin("shop:1", "shop:1")


@each("parent", [None, "", 7, "a" * 1025, "a\nb", "a\x7f", "a\x85"])
def test_what_cannot_be_a_key_is_no_origin(parent):
    assert provenance_in({"onceward-root": "shop:1", "onceward-parent": parent}.get) is UNKNOWN


@each("text", [None, "", "{", "[]", '{"root": "a"}', '{"root": 1, "parent": "a"}'])
def test_a_damaged_origin_is_none(text):
    assert read_origin(text) is None
    assert headers_for("shop:1", text)["onceward-root"] == "shop:1"


@each("root", ["shop:1", 'a","parent":"b', "a\\", 'shop:"é %"', "shop:1,", "a'b"])
def test_an_origin_begins_as_its_root_says(root):
    others = ["shop:1", 'a","parent":"b', "a", 'shop:"é %"', "shop:1,", "a'b", "shop:12"]
    for other in {*others, root}:
        origin = origin_in({"onceward-root": other, "onceward-parent": "p"})
        assert origin.startswith(beginning(root)) is (other == root)
    assert decoded(encoded(root)) == root
