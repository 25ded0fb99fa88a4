"""Keys that are run to their end without a redelivery: which, with what, and who else may have them. Each in both forms."""

import asyncio
import logging
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from faults.injected import Faults, fail_after, fail_before
from onceward import Claim, Once, StoreError, Sweep
from onceward.claim.completer import Completer, decorated
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from printed.pages import run
from step_scripts import Stopped
from tables import each

LEASE = 60.0


class Shop:
    """A handler that each test tells what to do, and a ledger whose time stands still."""

    def __init__(self, form="called", plan=None, **options):
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock) if plan is None else Faults(MemoryStore(self.clock), plan)
        self.once = Once(self.store, clock=self.clock, lease=LEASE, heartbeat=0)
        self.form = form
        self.calls, self.does = [], lambda n: n
        self.guard(**options)

    def guard(self, **options):
        """Guard the handler, as a deploy with other options would."""

        def place(n: int, claim: Claim):
            self.calls.append((n, claim.attempt))
            return self.does(n)

        async def place_async(n: int, claim: Claim):
            return place(n, claim)

        options = {"key": "n", "name": "place", "keep_input": True} | options
        self.place = self.once(**options)(place if self.form == "called" else place_async)

    def call(self, n):
        return self.place(n) if self.form == "called" else asyncio.run(self.place(n))

    def crash(self, *numbers):
        """Leave keys half done."""
        self.does = Mock(side_effect=Stopped)
        for n in numbers:
            with pytest.raises(Stopped):
                self.call(n)
        self.does = lambda n: n
        self.calls.clear()

    def complete(self, *functions, **options):
        functions = functions or (self.place,)
        if self.form == "called":
            return self.once.complete_lapsed(*functions, **options)
        return asyncio.run(self.once.complete_lapsed_async(*functions, **options))

    def lapse(self):
        self.clock.advance(LEASE + 1)

    def record(self, n=1):
        return self.once.ledger.show(f"place:{n}")[0]


@pytest.mark.parametrize("form", ["called", "awaited"])
def test_a_lapsed_key_runs_with_its_own_arguments_and_completes(form):
    shop = Shop(form)
    shop.crash(1)
    assert shop.complete(released=0) == Sweep()  # its lease is live
    shop.lapse()
    assert shop.complete() == Sweep(completed=1)
    assert shop.calls == [(1, 2)]
    assert (shop.record().status, shop.record().result, shop.record().input) == (COMPLETED, "1", None)
    assert shop.complete() == Sweep()
    assert shop.call(1) == 1
    assert shop.calls == [(1, 2)]


def test_a_key_that_was_given_back_runs_only_when_asked_for_and_old():
    shop = Shop()
    shop.does = Mock(side_effect=ValueError)
    with pytest.raises(ValueError):
        shop.call(1)
    shop.does = lambda n: n
    shop.lapse()
    assert shop.complete() == shop.complete(released=LEASE + 2) == Sweep()
    assert shop.complete(released=LEASE) == Sweep(completed=1)
    assert shop.calls == [(1, 1), (1, 2)]


def test_an_interrupt_ends_the_sweep():
    shop = Shop()
    shop.crash(1)
    shop.lapse()
    shop.does = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        shop.complete()
    assert shop.record().status == IN_PROGRESS


def test_completed_and_parked_keys_are_left_alone_and_what_keeps_its_input_outlives_its_retention():
    shop = Shop(retention=LEASE)
    shop.call(1)
    shop.crash(2, 3, 4)
    shop.lapse()
    shop.once.ledger.park("place:2")
    shop.once.ledger.park("place:3")
    shop.once.ledger.unpark("place:3")
    shop.lapse()
    assert [shop.record(n).expires_at for n in (2, 3, 4)] == [None] * 3
    assert shop.complete(released=0) == Sweep(completed=2)
    assert sorted(shop.calls) == [(3, 1), (4, 2)]
    assert shop.record(4).expires_at == shop.clock() + LEASE


def test_keys_of_other_functions_are_left_alone():
    shop = Shop()

    @shop.once(key="n", name="place", keep_input=True)
    def ship(n: int):
        raise AssertionError("it must not run")

    shop.crash(1)
    shop.lapse()
    assert shop.complete(ship) == Sweep(left=1)
    assert shop.complete(ship, shop.place) == Sweep(completed=1)


def test_a_function_that_is_run_without_a_decorator_is_completed():
    shop = Shop()
    once = shop.once.using(keep_input=True)

    def pay(n: int):
        return shop.does(n)

    shop.does = Mock(side_effect=Stopped)
    with pytest.raises(Stopped):
        once.run(1, pay, 1)
    shop.does = lambda n: -n
    shop.lapse()
    assert once.complete_lapsed(pay) == Sweep(completed=1)
    assert once.run(1, pay, 1) == -1


def test_a_handler_that_fails_again_gives_the_key_back_or_parks_it(caplog):
    shop = Shop(fingerprint="n", max_attempts=2)
    shop.crash(1)
    mark = shop.record().fingerprint
    shop.lapse()
    shop.guard(max_attempts=3)
    shop.does = Mock(side_effect=ValueError("4242-4242"))
    with caplog.at_level(logging.WARNING):
        assert shop.complete() == Sweep(failed=1)
    held = shop.record()
    assert (held.status, held.attempts, held.fingerprint, held.input is None) == (RELEASED, 2, mark, False)
    assert "place:1: run again, and it raised ValueError" in caplog.text
    assert "4242" not in caplog.text
    shop.crash(2)
    shop.lapse()
    shop.guard(max_attempts=1)
    assert shop.complete() == Sweep(parked=1)
    assert (shop.record(2).status, shop.calls) == (PARKED, [])


@each(
    "act",
    [
        lambda shop: shop.once.ledger.clear("place:1"),
        lambda shop: shop.once.ledger.park("place:1"),
        lambda shop: shop.once.acquire(1, name="place"),
        lambda shop: shop.once.acquire(1, name="place").complete(5),
        lambda shop: shop.once.acquire(1, name="place").release(),
    ],
)
def test_a_key_that_changes_after_it_was_seen_is_left_to_who_was_faster(act):
    shop = Shop()
    shop.crash(1)
    shop.lapse()
    load = shop.store.load

    def loaded(key):  # after the sweep has seen the key, and before it claims it
        reply = yield from load(key)
        shop.store.load = load
        act(shop)
        return reply

    shop.store.load = loaded
    assert shop.complete(released=0) == Sweep(taken=1)
    assert shop.calls == []


@each("fault", [fail_before(), fail_after()])
@each("number", range(1, 5))
def test_a_lost_request_or_reply_does_no_harm(fault, number):
    armed = []
    shop = Shop(plan=lambda ask: fault if armed and armed.append(1) is None and len(armed) == number + 1 else None)
    shop.crash(1)
    shop.lapse()
    armed.append(0)
    try:
        done = shop.complete()
    except StoreError:
        done = shop.complete()
    assert done == Sweep(completed=1)
    assert shop.calls == [(1, 2)]


def test_after_a_takeover_by_code_that_keeps_nothing_the_key_is_left_and_the_log_tells_once(caplog):
    shop = Shop()
    shop.crash(1)
    shop.lapse()
    shop.guard(keep_input=False)
    shop.crash(1)
    shop.lapse()
    shop.guard()
    completer = Completer([decorated(shop.place)], None)
    assert completer.run() == completer.run() == Sweep(left=1)
    assert caplog.text.count("place:1: left as it is, and not run: its arguments were not kept") == 1


def test_a_key_that_needs_a_newer_version_is_left(caplog):
    shop = Shop()
    shop.crash(1)
    shop.lapse()
    shop.store.records["place:1"] = held = shop.record()._replace(needs="colours")
    assert shop.complete() == Sweep(left=1)
    assert shop.record() == held
    assert "needs a newer version" in caplog.text


def test_a_function_that_cannot_be_completed_is_refused():
    once = Shop().once.using(name="shop", keep_input=True)

    class Till:
        def pay(self, n: int): ...

    one, other, awaited = Till(), Till(), Shop("awaited")
    for call, error, says in (
        (Shop(keep_input=False).complete, ValueError, r"its calls keep no arguments.*give it keep_input=True"),
        (lambda: once.complete_lapsed(Shop().place), ValueError, r"is guarded on another ledger: on memory:, not on"),
        (lambda: awaited.once.complete_lapsed(awaited.place), TypeError, r"await once\.complete_lapsed_async"),
        (lambda: once.complete_lapsed(one.pay, other.pay), ValueError, r"Till\.pay: two functions have this name"),
    ):
        with pytest.raises(error, match=says):
            call()
    assert once.complete_lapsed(one.pay, one.pay) == Sweep()


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = []
    pay = lambda key, total: made.append(total) or {"id": f"ch_{total}"}
    space = {"bank": SimpleNamespace(pay=pay), "send_mail": lambda order: made.append("mail")}
    run("docs/how-to/runbook.md", space, title="Finish half-done work")
    assert capsys.readouterr().out == "Sweep(completed=0, failed=0, parked=0, taken=0, left=0)\n"
    assert made == [1250, "mail"]
    space["once"].close()
