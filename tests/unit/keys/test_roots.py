"""A key path begins with a parameter of the handler, everywhere; another name is refused with the right spelling."""

import functools
import re

import pytest

from onceward import Claim, Once
from onceward.aws import (
    SqsWorker,
    on_invoke,
    on_sqs,
)
from onceward.aws.dead_letters.letters import Letters
from onceward.consumers.stop import Stop
from onceward.pipe import Command, Function, Pipe
from onceward.stores.memory import MemoryStore
from onceward.web import Route
from queues import lambda_events as events
from tables import each


def charge(order, region="eu"):
    return order["id"]


@each(
    "place",
    [
        lambda once, function, key: once(key=key)(function),
        lambda once, function, key: once.batch(function, key=key),
        lambda once, function, key: SqsWorker(once, "https://sqs.eu-west-1.amazonaws.com/1/q", function, key=key),
        lambda once, function, key: on_sqs(once, key=key)(function),
        lambda once, function, key: on_invoke(once, key=key)(function),
    ],
)
def test_a_name_that_is_no_parameter_is_refused_with_the_right_spelling(once, place):
    def handle(order): ...

    with pytest.raises(ValueError, match=r"key='id' names no parameter of handle\(order\); write key='order\.id'$"):
        place(once, handle, "id")


def test_the_same_key_is_read_from_the_same_input_everywhere():
    def keys(place):
        once = Once(MemoryStore(), name="n")
        place(once)
        return list(once.store.records)

    order = {"id": 7, "shop": "a"}
    key = "[order.shop, order.id]"
    assert (
        keys(lambda once: once(key=key)(charge)(order))
        == keys(lambda once: once.batch(charge, key=key).run([order]))
        == keys(lambda once: on_sqs(once, key=key)(charge)(events.sqs(order)))
        == keys(lambda once: on_invoke(once, key=key)(charge)(order, events.Context()))
        == ["n:(a,7)"]
    )


@each(
    ("key", "right"),
    [
        ("customer.id", "order.customer.id"),
        ("ordr.id", "order.id"),
        ("regin", "region"),
        ("[shop, order.id]", "[order.shop, order.id]"),
        ("{shop: shop, id: order.id}", "{shop: order.shop, id: order.id}"),
        ("id || number", "order.id || order.number"),
        ("join('-', [shop, id])", "join('-', [order.shop, order.id])"),
        ("lines[0].sku", "order.lines[0].sku"),
        ('"an id"', 'order."an id"'),
        ("[0].id", "order[0].id"),
        ("@", "order"),
    ],
)
def test_the_right_spelling_is_one_that_is_taken(once, key, right):
    with pytest.raises(ValueError, match=re.escape(f"write key={right!r}")):
        once(key=key)(charge)
    once(key=right)(charge)


def method(self, order, claim: Claim): ...
def several(*orders): ...
def named(**order): ...
def by_place(order, /): ...


@each(
    ("function", "shown", "right"),
    [
        (method, "method(self, order)", "order.id"),
        (several, "several(*orders)", "orders[0].id"),
        (named, "named(**order)", "order.id"),
        (by_place, "by_place(order)", "order.id"),
        (functools.partial(charge, region="us"), "charge(order, region)", "order.id"),
    ],
)
def test_every_kind_of_parameter_is_a_root(once, function, shown, right):
    with pytest.raises(ValueError, match=re.escape(f"no parameter of {shown}; write key={right!r}")):
        once(key="id", name="n")(function)
    once(key=right, name="n")(function)


def test_no_key_is_read_from_the_claim_nor_from_no_input(once):
    def handle(order, claim: Claim): ...
    def alone(claim: Claim): ...

    with pytest.raises(ValueError, match=r"key='claim\.fence' names the claim, which onceward fills in"):
        once(key="claim.fence")(handle)
    with pytest.raises(ValueError, match=r"names no parameter of alone\(\), so there is nothing to read it from"):
        once(key="order.id")(alone)


@each("option", ["fingerprint", "at"])
def test_other_options_are_checked_in_the_same_way(once, option):
    with pytest.raises(
        ValueError, match=rf"{option}='time' names no parameter of charge.*; write {option}='order\.time'"
    ):
        if option == "at":
            once.per("1h", at="time")(charge)
        else:
            once(key="order.id", fingerprint="time")(charge)


@each(
    ("make", "says"),
    [
        (lambda once: once.checkpoint(print, name="n", key="id"), "key='id' does not start with item, .*; write key='item.id'"),
        (lambda _: Route(key="payment.id"), "key='payment.id' does not start with body, .*; write key='body.payment.id'"),
        (lambda _: Letters("n", "id"), "key='id' does not start with body, .*; write key='body.id'"),
        (lambda _: Letters("n", where="total"), "where='total' does not start with body, .*; write where='body.total'"),
        (lambda once: Pipe(once, Function("json:loads"), key="line.id"), "no parameter of loads.s.; write key='s.id'"),
        (lambda _: Command(["echo", "{id}"], Stop(), 9), "{id} does not start with line, .*; write {line.id}"),
    ],
)  # fmt: skip
def test_where_no_function_is_known_the_fixed_name_is_told(once, make, says):
    with pytest.raises(ValueError, match=says):
        make(once)


def test_a_callable_that_names_no_input_is_refused(once):
    for key in (lambda customer, country: 1, lambda order, customer: 1):
        with pytest.raises(
            ValueError, match=r"customer.*, which names no parameter of charge\(order, region\): let it name"
        ):
            once(key=key)(charge)
    with pytest.raises(ValueError, match=r"key= takes order, which names no parameter of nothing\(\)"):

        @on_sqs(once, key=lambda order: order["id"])
        def nothing(): ...
