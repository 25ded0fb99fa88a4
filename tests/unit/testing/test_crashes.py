"""Crash tests find what is planted in handlers, and right handlers pass."""

import itertools
from unittest.mock import Mock

import pytest

from onceward import NOT_MADE, Claim, LeaseLost, Made, Once, OncewardError, current
from onceward.stores.sqlite import SqliteStore
from onceward.testing import Crashes, Mishap
from tables import each

pytestmark = pytest.mark.slow
shop = Once("sqlite:////nowhere/at/all/orders.db")  # as in a module of a user
ORDER = {"id": "order-1"}


class Bank:
    """A downstream that knows repetitions by their key."""

    def __init__(self):
        self.charges = []

    def charge(self, order, key=None):
        self.charges.append(order)
        return f"receipt of {order}"

    async def charge_async(self, order, key=None):
        return self.charge(order)

    def was_charged(self, order):
        return order in self.charges


@shop(key="order.id")
def with_a_derived_key(order: dict, bank) -> str:
    return bank.charge(order["id"], key=current().key("charge"))


@shop(key="order.id")
async def with_a_derived_key_async(order: dict, bank) -> str:
    return await bank.charge_async(order["id"], key=current().key("charge"))


@shop(key="order.id")
def with_steps(order: dict, bank, claim: Claim) -> str:
    receipt = claim.step("charge", bank.charge, order["id"], key=claim.key("charge"))
    claim.step("points", bank.charge, "points", key=claim.key("points"))
    return receipt


def find_out(key, order, **_):
    return Made(f"receipt of {order}") if REAL.was_charged(order) else NOT_MADE


REAL = Bank()


@shop(key="order.id")
def with_a_step_that_finds_out(order: dict, bank, claim: Claim) -> str:
    return claim.step("charge", bank.charge, order["id"], on_lapse=find_out)


@shop(key="order.id", on_lapse="park", on_error="park")
def that_parks(order: dict, bank) -> str:
    return bank.charge(order["id"])


def with_a_claim_block(order, bank):
    try:
        with shop.claim(order["id"], name="block") as claim:
            bank.charge(order["id"], key=claim.key("charge"))
    except OncewardError as error:
        if type(error).__name__ != "Completed":
            raise


RIGHT = [with_a_derived_key, with_a_derived_key_async, with_steps, that_parks, with_a_claim_block]


@each("handler", RIGHT)
def test_right_handlers_pass(handler):
    with Crashes() as crashes:
        for crash in crashes:
            bank = crash.downstream(Bank(), "charge", "charge_async", by="key")
            crash.deliver(handler, ORDER, bank)
            crash.happened_once()
            assert crash.error is None or crash.parked
    assert crashes.runs > 20


def test_the_recovery_from_a_crash_can_be_struck_too():
    with Crashes(depth=2, mishaps=[Mishap.KILLED_AFTER, Mishap.PAUSED]) as crashes:
        for crash in crashes:
            bank = crash.downstream(Bank(), "charge", by="key")
            crash.deliver(with_a_derived_key, ORDER, bank)
            crash.happened_once()
    assert crashes.runs > 50


def test_a_step_that_finds_out_passes_unless_a_worker_is_paused_in_it():
    """A paused worker goes on with its call after the other one has looked: only a downstream that fences can tell."""
    mishaps = set(Mishap) - {Mishap.PAUSED}
    for crash in Crashes(mishaps=mishaps):
        REAL.charges.clear()
        crash.deliver(with_a_step_that_finds_out, ORDER, crash.downstream(REAL, "charge"))
        crash.happened_once()


@shop(key="order.id")
def without_a_derived_key(order: dict, bank) -> str:
    return bank.charge(order["id"])


def with_the_effect_before_the_claim(order, bank):
    bank.charge(order["id"])
    shop.run(order["id"], record_only, order)


def record_only(order: dict) -> None: ...


@shop(key="order.id")
def with_an_effect_beside_its_steps(order: dict, bank, claim: Claim) -> str:
    bank.charge("a letter")
    return claim.step("charge", bank.charge, order["id"], key=claim.key("charge"))


def that_swallows_errors(order, bank):
    try:
        with_a_derived_key(order, bank)
    except Exception:
        return "all is well"


def that_swallows_a_lost_lease(order, bank):
    try:
        with_steps(order, bank)
    except LeaseLost:
        bank.charge("an apology")


@shop(key="order.id", on_busy="skip")
def that_skips_what_is_busy(order: dict, bank) -> str:
    return bank.charge(order["id"], key=current().key("charge"))


def complaint(handler, depth=1):
    with pytest.raises(AssertionError) as met, Crashes(depth=depth) as crashes:
        for crash in crashes:
            bank = crash.downstream(Bank(), "charge", "charge_async", by="key")
            crash.deliver(handler, ORDER, bank)
            crash.happened_once()
    return str(met.value)


def with_an_effect_after_the_claim(order, bank):
    with_a_derived_key(order, bank)
    bank.charge("a letter")


@each(
    "handler",
    [
        without_a_derived_key,
        with_the_effect_before_the_claim,
        with_an_effect_beside_its_steps,
        with_an_effect_after_the_claim,
    ],
)
def test_effects_that_happen_twice_are_found(handler):
    assert "happened twice instead of once" in complaint(handler)


@each("handler", [that_swallows_errors, that_skips_what_is_busy])
def test_effects_that_get_lost_are_found(handler):
    told = complaint(handler)
    assert "happened 0 times instead of once" in told
    assert "Look for" in told


def test_what_swallows_a_lost_lease_or_uses_a_key_again_is_found():
    assert "Bank.charge('an apology') happened once instead of 0 times" in complaint(that_swallows_a_lost_lease)

    @shop(key="order.id", name="one-key")
    def with_one_key_for_two_effects(order: dict, bank) -> str:
        bank.charge(order["id"], key=current().key())
        return bank.charge("a letter", key=current().key())

    told = complaint(with_one_key_for_two_effects)
    assert told.startswith("Bank.charge('a letter') has the idempotency key of Bank.charge('order-1')")


def test_a_report_tells_what_happened_and_what_to_change():
    told = complaint(without_a_derived_key)
    assert "This run: the worker is killed right after Bank.charge('order-1')." in told
    assert told.index("delivered:") < told.index("redelivered at once:") < told.index("redelivered after the lease:")
    assert "claim.key(" in told


def test_a_test_without_an_effect_is_told_because_it_would_find_nothing():
    with pytest.raises(AssertionError, match="No effect has happened in this crash test"), Crashes() as crashes:
        for crash in crashes:
            crash.deliver(with_a_derived_key, ORDER, Bank())  # not crash.downstream(Bank())
            crash.happened_once()


def test_a_handler_that_differs_each_time_is_told():
    numbers = itertools.count()

    def sometimes(order, bank):
        answer = with_a_derived_key(order, bank)
        if next(numbers) < 2:
            bank.charge("more")
        return answer

    with pytest.raises(AssertionError, match="did not come to their point"):
        for crash in Crashes():
            crash.deliver(sometimes, ORDER, crash.downstream(Bank(), by="key"))


def test_after_the_loop_a_once_has_its_own_store_again():
    crashes = Crashes()
    for crash in crashes:
        assert type(shop.store) is not SqliteStore
        crash.deliver(with_a_derived_key, ORDER, Bank())
        break
    crashes.close()
    assert type(shop.store) is SqliteStore
    assert "exchange" not in vars(shop.store)


def test_a_killed_worker_does_nothing_more():
    @shop(key="order.id", name="stubborn")
    def stubborn(order: dict, bank) -> None:
        try:
            bank.charge(order["id"], key=current().key())
        except BaseException:
            bank.charge("goes on", key="goes on")

    for crash in Crashes(mishaps=[Mishap.KILLED_AFTER]):
        bank = crash.downstream(Bank(), by="key")
        crash.deliver(stubborn, ORDER, bank)
        assert bank.charges == ["order-1"]


def test_a_downstream_that_raises_stop_iteration_fails_as_with_any_error():
    with pytest.raises(AssertionError, match="the delivery is not over after 10 tries"), Crashes() as crashes:
        for crash in crashes:
            bank = crash.downstream(Mock(**{"charge.side_effect": []}), "charge")
            crash.deliver(with_a_derived_key, ORDER, bank)
