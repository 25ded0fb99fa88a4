"""Steps: made once over all attempts, and what each says of an attempt that ended inside it. Each test runs in both forms."""

import asyncio
import sqlite3

import pytest

import onceward
from onceward import LeaseLost, Made, Once, Parked
from onceward.stores.memory import MemoryStore
from step_scripts import Charge, Script, Smtp, crashed, only, record, step, stopping
from tables import each

pytestmark = pytest.mark.sampled(form=1)


def test_a_recorded_step_does_not_run_again(once, form, effects):
    def pay(card, *, name, function) -> Charge:  # as step's own parameters are called
        effects.append((card, name, function))
        return Charge("ch_1", 5)

    def parts(claim):
        charge = yield step("charge", pay, "4242", name="Ann", function="debit")
        yield step("mail", lambda: 1 / (claim.attempt - 1))
        return charge

    place = Script(once, form, parts)
    with pytest.raises(ZeroDivisionError):
        place()
    assert '"name":"charge"' in record(once).steps
    assert record(once).worker in record(once).steps
    assert record(once).needs == "steps"  # so that code which does not know steps leaves the key alone
    assert place() == Charge("ch_1", 5)
    assert effects == [("4242", "Ann", "debit")]


@pytest.mark.parametrize("options", [{}, {"on_lapse": lambda *_: onceward.NOT_MADE}])
def test_a_step_that_an_attempt_ended_in_runs_again(once, form, clock, effects, options):
    crashed(once, form, clock, only(step("charge", stopping(effects))))
    Script(once, form, only(step("charge", effects.append, "made", **options)))()
    assert effects == [(), "made"]


def test_a_function_is_asked_only_when_an_earlier_attempt_may_have_made_it(once, form, clock, effects):
    asked, keys = [], []

    def find(key, *arguments):
        asked.append((key, *arguments))
        return Made("reserved")

    def parts(claim):
        keys.append(claim.key("stock"))
        return (yield step("stock", stopping(effects), "apple", on_lapse=find))

    crashed(once, form, clock, parts)
    assert asked == []
    assert Script(once, form, parts)() == "reserved"
    assert asked == [(keys[0], "apple")]
    assert len(effects) == 1


def test_a_handler_that_goes_on_after_a_stop_is_parked_all_the_same(once, form, clock, effects):
    crashed(once, form, clock, only(step("mail", stopping(effects), on_lapse="park")))

    def parts(claim):
        for name in ("mail", "other"):
            with pytest.raises(Parked):
                yield step(name, effects.append, 2, on_lapse="park")
        return "as if all were well"

    with pytest.raises(Parked, match="'mail'"):
        Script(once, form, parts)()
    assert (record(once).status, "mail" in record(once).error, len(effects)) == ("PARKED", True, 1)


@each("ends", ["complete", "transaction"])
def test_a_stopped_attempt_cannot_be_completed_by_hand(tmp_path, ends):
    once = Once(f"sqlite:///{tmp_path}/{ends}.db", name="n")
    first = once.acquire("k")
    with pytest.raises(ZeroDivisionError):
        first.step("mail", lambda: 1 / 0, on_lapse="park")
    first.release()
    with pytest.raises(Parked), once.claim("k") as claim:
        with pytest.raises(Parked):
            claim.step("mail", pytest.fail, on_lapse="park")
        if ends == "complete":
            claim.complete("done")
        else:
            with claim.transaction(sqlite3.connect(tmp_path / f"{ends}.db", isolation_level=None)):
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

    with pytest.raises(LeaseLost):
        Script(once, form, only(step("charge", late)))()
    assert effects == ["the successor's"]
    assert record(once).status == "COMPLETED"


def test_a_step_renews_the_lease(once, form, clock):
    def parts(claim):
        for n in range(4):
            yield step(n, clock.advance, 40)
            assert claim.remaining > 55

    Script(once, form, parts)()


def test_a_heartbeat_that_came_in_between_does_not_stop_a_step(once):
    claim = once.acquire("k")
    before = claim.record
    claim.extend()
    claim.record = before  # its reply is still on its way
    claim.step("mail", list)
    assert '"mail"' in record(once, "claim:k").steps


def test_a_final_exception_of_a_parking_step_is_the_outcome(once, form, effects):
    def mail():
        effects.append(1)
        raise Smtp("unknown address")

    place = Script(once, form, only(step("mail", mail, on_lapse="park")), final=(Smtp,))
    for _ in range(2):
        with pytest.raises(Smtp, match="unknown"):
            place()
    assert (record(once).status, effects) == ("COMPLETED", [1])


def test_what_makes_no_step_is_refused_before_anything_runs(once, effects):
    claim = once.acquire("1")
    for name in ("", None, (), ("mail", "")):
        with pytest.raises(ValueError, match="cannot name a step"):
            claim.step(name, effects.append, 1)
    for options in ({"on_lapse": "wait"}, {"not_made": (Smtp,)}, {"on_lapse": "park", "not_made": Smtp}):
        with pytest.raises((TypeError, ValueError)):
            claim.step("charge", effects.append, 1, **options)
    with pytest.raises(TypeError, match="step_async"):
        claim.step("charge", asyncio.sleep)
    assert effects == []
