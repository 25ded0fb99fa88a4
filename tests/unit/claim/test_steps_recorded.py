"""What steps leave in the record: results that are large, sealed or lost, and what an operator takes back. In both forms."""

import contextlib
import threading
import warnings

import pytest

import onceward
from faults.injected import Faults, fail_after, fail_before, when
from onceward import Busy, LeaseLost, Once, OncewardError, Parked, ResultWarning, StepNotRecorded, StoreError
from onceward.claim.stepping import handler_steps
from onceward.claim.stepping.notes import StepNotes
from onceward.core.policy import DAY
from onceward.results.step_entries import LONGEST
from onceward.stores.memory import MemoryStore
from step_scripts import Script, Smtp, failing, only, record, step

pytestmark = pytest.mark.sampled(form=1)


def test_a_result_that_cannot_be_recorded_parks_a_later_attempt(once, form, effects):
    parts = failing(step("open", lambda: effects.append(1) or threading.Lock()))
    with pytest.raises(Smtp), pytest.warns(ResultWarning, match="'open'"):
        Script(once, form, parts)()
    with pytest.raises(Parked, match="'open'"), warnings.catch_warnings():
        Script(once, form, parts)()
    assert effects == [1]


def faulty(clock, fault, times=10**6):
    """Return a ledger that fails to write steps so many times."""
    left, kept = [times], MemoryStore(clock)

    def plan(ask):
        if not left[0] or all(write.steps is None for write in ask.writes):
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


def test_what_does_not_fit_is_refused_before_it_runs(once, form, effects):
    def parts(claim):
        yield step("big", lambda: "x" * 15_400)
        with pytest.raises(OncewardError, match="no room"):
            yield step("n" * 199, effects.append, 1)

    Script(once, form, parts)()
    assert effects == []


def test_a_large_result_has_a_record_of_its_own_and_is_fetched_when_asked_for(once, form, effects, clock):
    text = "ü" * 9_000

    def parts(claim):
        got = yield step("big", lambda: effects.append("big") or text)
        if claim.attempt == 1:
            raise Smtp
        return got

    place = Script(once, form, parts, keep_input=True, retention=60)
    with pytest.raises(Smtp):
        place()
    clock.advance(300 * DAY)  # the record does not expire
    once.ledger.purge()
    assert len(record(once).steps.encode()) <= LONGEST
    (kept,) = set(once.store.records) - {"place:1"}
    assert kept.startswith("place:step-")
    assert kept in record(once).steps
    assert place() == text
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
    assert Script(once, form, only(step("big", pytest.fail)))() == "theirs" * 5_000


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


def test_a_seal_that_cannot_open_a_step_for_now_leaves_the_key_for_a_later_attempt(once, form, effects):
    away = []

    def unseal(data):
        if away:
            raise OSError("the key service is away")
        return data

    def again(claim):
        with contextlib.suppress(StoreError):  # which changes nothing
            yield step("charge", effects.append, 2)
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


def test_an_interrupt_after_a_step_lets_it_be_recorded_and_holds_nobody_up(once, form, effects, monkeypatch):
    def interrupted(*given):
        monkeypatch.undo()
        raise KeyboardInterrupt

    def parts(claim):
        for name, owner, function in (("charge", handler_steps.called, "failure"), ("mail", StepNotes, "_leave")):
            monkeypatch.setattr(owner, function, interrupted)
            with pytest.raises(KeyboardInterrupt):
                yield step(name, effects.append, name)
        began = claim.clock()
        yield step("last", effects.append, "last")
        assert claim.clock() == began

    Script(once, form, parts, lease=1)()
    assert effects == ["charge", "mail", "last"]
    assert all(f'"{name}"' in record(once).steps for name in effects)


def test_retry_forgets_a_step_and_those_after_it_and_a_fresh_life_all_of_them(once, form, clock, effects):
    place = Script(once, form, only(*(step(name, effects.append, name) for name in "abc")), retention=100)
    place()
    once.ledger.retry("place:1", "b")
    place()
    assert effects == ["a", "b", "c", "b", "c"]
    clock.advance(200)
    place()
    assert effects[5:] == ["a", "b", "c"]
    claim = once.acquire(2, name="place")
    claim.step("a", int)
    with pytest.raises(Busy):  # a worker holds it
        once.ledger.retry("place:2", "a")
