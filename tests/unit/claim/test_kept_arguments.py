"""Arguments that are kept in a record: what is kept, and what is refused before anything runs."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import pytest
from cryptography.fernet import Fernet

from onceward import InputNotKept
from onceward.claim.inputs import LONGEST, InputCodec, read_input
from onceward.core import protocol
from onceward.core.policy import DAY
from onceward.core.record import Record
from onceward.core.writes import NO_STEPS
from onceward.results.classes import NotReplayable
from step_scripts import Stopped
from tables import each

fernet = Fernet(Fernet.generate_key())
SEAL = (fernet.encrypt, fernet.decrypt)
CARD = "4242-4242"


@dataclass
class Order:
    id: int
    total: Decimal
    at: datetime


class Connection:
    """What no record can keep."""


CONNECTION = Connection()


def kept(once):
    ((record, _),) = once.ledger.records()
    return record.input


def codec(function, seal=None, claim=None):
    return InputCodec(function, "shop.f", claim, seal)


def both_ways(function, *args, **kwargs):
    made = codec(function)
    return tuple(made.decode(read_input(made.encode(args, kwargs), None)))


def test_typed_arguments_are_plain_json_and_come_back_with_their_types():
    def place(order: Order, note: str = "none"): ...

    order = Order(7, Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC))
    text = codec(place).encode((order,), {})
    arguments = {"order": {"id": 7, "total": "1.50", "at": "2026-01-02T00:00:00Z"}}
    assert json.loads(text) == {"function": "shop.f", "arguments": arguments}
    assert both_ways(place, order, note="now") == ((order, "now"), {})


def test_arguments_without_annotations_keep_their_own_types():
    def place(order, *more, flag=True, connection=CONNECTION, **rest): ...
    def typed(*ids: int, **prices: Decimal): ...

    call = (({"id": 7}, (1, b"x"), {3}), {"flag": False, "by": Decimal(1)})
    assert both_ways(place, *call[0], **call[1]) == call
    assert both_ways(typed, 1, 2, a=Decimal("0.1")) == ((1, 2), {"a": Decimal("0.1")})
    assert json.loads(codec(place).encode((1,), {}))["arguments"] == {"order": 1}  # no default is kept


@pytest.mark.parametrize("how", ["run", "run_async", "run_outcome"])
def test_every_way_to_call_a_function_keeps_its_arguments(once, how):
    def place(n: int):
        raise Stopped

    once = once.using(keep_input=True, name="shop")
    with pytest.raises(Stopped):
        if how == "run_async":
            asyncio.run(once.run_async(7, place, 7))
        else:
            getattr(once, how)(7, place, 7)
    assert json.loads(kept(once))["arguments"] == {"n": 7}


def test_a_claim_that_is_given_back_before_its_handler_keeps_nothing(once):
    claim = Record(key="k", status="IN_PROGRESS", owner="me", fence=1, beat=0, lease_until=9, attempts=1, fingerprint="f",
                   result=None, error=None, created_at=1, expires_at=None, input="{}")  # fmt: skip
    given_back = protocol.unclaimed(claim, once.policy)
    assert (given_back.input, given_back.keep) == (None, 14 * DAY)
    assert protocol.unclaimed(claim._replace(attempts=2), once.policy).input == "{}"
    unparked = protocol.unclaimed(claim._replace(steps=NO_STEPS), once.policy)  # its attempts count from 0 again
    assert (unparked.fingerprint, unparked.input) == ("f", "{}")


def test_annotations_that_are_defined_later_count_as_none(once):
    @once(key="order.id", keep_input=True, name="late", on_error="park")
    def place(order: "Later") -> "Later":  # noqa: F821 - nowhere defined
        if order.id == 7:
            raise Stopped
        return order

    orders = [Order(number, Decimal(1), datetime(2026, 1, 2, tzinfo=UTC)) for number in (7, 8)]
    with pytest.raises(Stopped):
        place(orders[0])
    assert json.loads(kept(once))["arguments"]["order"]["value"]["fields"]["id"] == 7
    assert place(orders[1]) == place(orders[1]) == orders[1]


def test_sealed_arguments_are_nowhere_in_plain_text(once):
    @once(key="n", keep_input=True, seal=SEAL)
    def place(n: int, card: str):
        raise Stopped

    with pytest.raises(Stopped):
        place(7, CARD)
    text = kept(once)
    assert CARD not in text
    made = codec(lambda n, card: None, SEAL)
    assert made.decode(read_input(text, SEAL))[0] == (7, CARD)
    with pytest.raises(NotReplayable, match="give the guard the seal="):
        read_input(text, None)


@pytest.mark.parametrize("seal", [lambda data: 1 // 0, lambda data: None])
def test_a_seal_that_fails_runs_and_records_nothing(once, seal):
    ran = []

    def place(card):
        ran.append(card)

    with pytest.raises(InputNotKept, match="its seal ") as caught:
        once.using(keep_input=True, seal=(seal, bytes)).run(7, place, CARD)
    assert CARD not in str(caught.value)
    assert (ran, list(once.ledger.records())) == ([], [])


def test_what_cannot_be_kept_is_refused_when_decorating(once):
    class Shop:
        def place(self, n: int): ...

    def place(n: int, connection: Connection): ...

    for function, says in (
        (place, r"place: keep_input=True cannot keep the argument 'connection' of type .*Connection"),
        (Shop.place, r"cannot keep self.*once\.using\(keep_input=True\)\.run"),
        (partial(place, 1), "needs a function with a name of its own"),
    ):
        with pytest.raises(TypeError, match=says):
            once(key="n", keep_input=True, name="shop")(function)


@each(
    ("value", "says"),
    [
        (CONNECTION, r"place: keep_input=True cannot keep the argument 'value'.*Nothing ran"),
        ("é" * (LONGEST // 2), rf"at most {LONGEST} bytes of arguments, and these take \d+\. Nothing ran"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused_before_anything_runs(once, value, says):
    @once(key="n", keep_input=True)
    def place(n, value):
        raise AssertionError("it must not run")

    with pytest.raises(InputNotKept, match=says):
        place(7, value)
    try:
        raise KeyError("another one")
    except KeyError:  # which must not stand for what cannot be kept
        with pytest.raises(InputNotKept, match=says):
            place(7, value)
    assert list(once.ledger.records()) == []


@each(
    "use",
    [
        lambda once: once.claim(7),
        lambda once: once.transaction(7, None),
        lambda once: once.batch(print, key="args[0].id", name="b"),
        lambda once: once.checkpoint(print, key="item.id", name="c"),
        lambda once: once.per("1h", "p")(print),
    ],
)
def test_what_is_no_call_of_a_function_refuses_the_option(once, use):
    with pytest.raises(ValueError, match="keep_input=True is for functions that you decorate"):
        use(once.using(keep_input=True))


def of_text(n: str): ...
def of_number(n: int): ...


@each(
    ("before", "today", "why"),
    [
        (of_number, lambda number: None, "its call had an argument 'n', which shop.f does not take today"),
        (of_number, lambda n, more: None, "its call does not fit shop.f today: missing a required argument: 'more'"),
        (of_text, of_number, "its argument 'n' cannot be read: Expected `int`, got `str`"),
    ],
)
def test_a_call_that_does_not_fit_todays_function_says_why(before, today, why):
    text = codec(before).encode((7 if before is of_number else "seven",), {})
    with pytest.raises(NotReplayable, match=why):
        codec(today).decode(read_input(text, None))
