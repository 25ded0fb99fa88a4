"""What a record tells: its last attempts, their workers, the origin of a call, and that a newer version wrote it, so that it is left alone."""

import dataclasses
import os
from types import SimpleNamespace

import pytest

from onceward import Attempt, Busy, Once, OncewardError, Parked, UnknownNeed, UnknownStatus
from onceward.aws import on_invoke
from onceward.core import history, protocol, worker
from onceward.core.origin import CallOrigin, decoded, encoded, headers_for, provenance_in, read_origin
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, is_mine, judge, keeping
from onceward.core.views import NextStep, next_step
from onceward.core.writes import UNKNOWN
from onceward.stores.memory import MemoryStore
from onceward.testing.bench import claim_of
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
def test_a_root_of_any_text_comes_back_from_a_header(root):
    assert decoded(encoded(root)) == root


@pytest.fixture
def newer():
    newer = Once(MemoryStore(), name="n", lease=1, retention=1)
    newer.run("k", int)
    held = newer.store.records["n:k"]
    newer.store.records["n:k"] = held._replace(status="QUEUED", expires_at=held.lease_until, lease_until=0.0)
    return newer


def never(key):
    pytest.fail(key)


def test_an_unknown_status_is_refused_although_it_is_expired_and_says_who_may_know_it(newer):
    with pytest.raises(UnknownStatus, match=r"n:k: its record has the status 'QUEUED'.*upgrade onceward") as raised:
        newer.run("k", pytest.fail)
    assert (raised.value.key, raised.value.status) == ("n:k", "QUEUED")
    (outcome,) = newer.batch(never, key="key", name="n").run(["k"])
    assert (outcome.status, type(outcome.error)) == ("failed", UnknownStatus)
    with newer.checkpoint(pytest.fail, key=lambda item: item, name="n") as sink, pytest.raises(UnknownStatus):
        sink.add("k")


def test_an_unknown_status_cannot_be_parked_or_purged_but_cleared_by_hand(newer):
    for change in (newer.ledger.park, newer.ledger.unpark):
        with pytest.raises(OncewardError, match="it is QUEUED"):
            change("n:k")
    assert newer.ledger.purge() == 0
    assert newer.ledger.clear("n:k").status == "QUEUED"
    assert newer.run("k", int) == 0


def test_no_option_of_a_policy_makes_an_unknown_status_claimable(newer):
    held, _ = newer.ledger.show("n:k")
    for policy in (Policy(), Policy(on_lapse="park"), Policy(max_attempts=1), Policy(on_busy="skip")):
        for owner in (held.owner, "other"):
            assert decide(held, 1e12, owner, "another", policy) is Verdict.UNKNOWN


def needing(newer, needs):
    """Have the record need features, as a newer version writes it."""
    newer.store.records["n:k"] = newer.store.records["n:k"]._replace(status="COMPLETED", needs=needs)
    return newer.ledger.show("n:k")[0]


def test_a_key_that_needs_unknown_feature_is_refused_with_what_to_deploy(newer):
    held = needing(newer, "chunks sagas")
    with pytest.raises(
        UnknownNeed, match=r"n:k: its record needs chunks, sagas,.*deploy the newer version on all workers"
    ) as raised:
        newer.run("k", pytest.fail)
    assert (raised.value.key, raised.value.needs) == ("n:k", ["chunks", "sagas"])
    (outcome,) = newer.batch(never, key="key", name="n").run(["k"])
    assert type(outcome.error) is UnknownNeed
    assert newer.ledger.show("n:k")[0] == held


def test_only_clearing_by_hand_changes_record_that_needs_unknown_feature(newer):
    held = needing(newer, "chunks")
    for change in (newer.ledger.park, newer.ledger.unpark):
        with pytest.raises(UnknownNeed):
            change("n:k")
    assert keeping(held._replace(status="PARKED"), "message") is None
    assert newer.ledger.purge() == 0
    assert newer.ledger.show("n:k")[0] == held
    assert next_step(held, 1e12) is NextStep.UPGRADE
    assert newer.ledger.clear("n:k") == held


def test_a_need_that_is_known_is_no_obstacle(newer, monkeypatch):
    monkeypatch.setattr(protocol, "NEEDS", frozenset({"chunks"}))
    needing(newer, "chunks")
    assert newer.run("k", int) == 0
    assert newer.ledger.show("n:k")[0].needs == "chunks"


def test_a_need_that_came_while_it_worked_takes_the_claim_from_its_owner():
    held = claim_of("k", "me").at(1.0)
    assert is_mine(held, held)
    needy = held._replace(needs="chunks")
    assert not is_mine(needy, held)
    assert judge(needy._replace(status="COMPLETED"), "me", "COMPLETED") is protocol.Ending.LOST
