"""Two functions that are not the same never share keys, and a key path begins with a parameter of its handler."""

import asyncio
import functools
import re

import pytest

from onceward import Claim, Once, aws, pipe, web
from onceward.aws import Queue, Redrive
from onceward.consumers.stop import Stop
from onceward.stores.memory import MemoryStore
from places import DOCS
from queues import lambda_events as events
from tables import each


def sender(channel, sent):
    def send(n: int) -> str:
        sent.append((channel, n))
        return channel

    return send


def test_two_closures_of_one_factory_are_refused_before_the_second_is_run(tmp_path):
    once, other = (Once(f"sqlite:///{tmp_path}/ledger.db") for _ in range(2))
    sent = []
    assert once.using(lease=5).run(1, sender("sms", sent), 1) == "sms"
    for _ in range(2):
        with pytest.raises(ValueError, match=r"once\.using\(name="):
            once.run(1, sender("email", sent), 1)
    with pytest.raises(ValueError, match="name="):
        asyncio.run(other.run_async(1, sender("email", sent), 1))
    assert sent == [("sms", 1)]
    sms = once(key="n")(sender("sms", sent))
    with pytest.raises(ValueError, match=r"sender\.<locals>\.send.*'channel'.*name="):
        other(key="n")(sender("email", sent))
    assert sms(1) == "sms"
    once.close()


def with_default(channel):
    def send(n, channel=channel):
        return channel

    return send


@each(("one", "other"), [("sms", "email"), (("sms", object), ("email", object))])
def test_closures_that_differ_in_a_default_are_refused(one, other):
    once = Once(MemoryStore())
    kept = once(key="n")(with_default(one))
    with pytest.raises(ValueError, match="name="):
        once(key="n")(with_default(other))
    assert kept


@each(
    "apply",
    [
        lambda once, function: once.batch(function, key="n"),
        lambda once, function: once.checkpoint(function, key="item.id", count=1),
        lambda once, function: once.per("1h")(function),
        lambda once, function: aws.on_sqs(once, key="n.id")(function),
    ],
)
def test_wherever_a_function_gives_its_name_a_namesake_and_a_partial_are_refused(apply):
    once = Once(MemoryStore())

    def send(channel, n): ...

    kept = [apply(once, sender("sms", []))]
    with pytest.raises(ValueError, match="name="):
        kept.append(apply(once, sender("email", [])))
    with pytest.raises(ValueError, match=r"partial.*give name="):
        apply(once, functools.partial(send, "sms"))


def test_two_functions_that_a_module_gives_one_name_are_refused_unless_it_is_loaded_again(once):
    def handler(line, loaded):
        space = {"__name__": "shop", "__spec__": loaded}
        exec("\n" * line + f"def _(n): return {line}", space)
        return space["_"]

    kept = once(key="n")(handler(0, "first"))
    with pytest.raises(ValueError, match=r"shop\._: .* line 1 of .*name="):
        once(key="n")(handler(1, "first"))
    again = once(key="n")(handler(1, "again"))
    assert (kept(1), again(1), again(2)) == (0, 0, 1)


def test_a_function_and_what_wraps_it_share_their_keys(once):
    def send(n):
        return n

    @functools.wraps(send)
    def logged(n):
        return send(n)

    assert once.run(1, send, 1) == once.run(1, logged, 2) == once(key="n")(logged)(1) == 1


def test_an_application_made_again_after_the_first_is_gone_keeps_working(once):
    def application(connection):
        @once(key="order")
        def charge(order: int) -> str:
            connection.append(order)
            return "EUR"

        charge.itself = charge  # a cycle, as applications are
        return charge

    for connection in ([], ["used"], []):
        assert application(connection)(len(once.store.records)) == "EUR"


def test_a_decorated_method_that_two_classes_inherit_is_not_run_for_both(once):
    runs = []

    class Base:
        @once(key="n")
        def send(self, n):
            runs.append(self)
            return type(self).__name__

        def bare(self, n):
            return type(self).__name__

        @once.per("1d")
        def report(self):
            return type(self).__name__

        @classmethod
        @once(key="n")
        def post(cls, n):
            return cls.__name__

        @staticmethod
        @once(key="n")
        def plain(n):
            return n

        @once(key="n", name="shared")
        def shared(self, n):
            return type(self).__name__

    left, right = (type(name, (Base,), {}) for name in ("Left", "Right"))
    for call in (
        lambda kind: kind().send(1),
        lambda kind: once.run(2, kind().bare, 2),
        lambda kind: kind().report(),
        lambda kind: kind.post(1),
    ):
        assert call(left) == call(left) == "Left"
        with pytest.raises(ValueError, match="class whose method it is"):
            call(right)
    assert len(runs) == 1  # two instances of a class share its keys
    assert left.plain(1) == right.plain(1) == 1
    assert left().shared(1) == right().shared(1) == "Left"


def example(name, **space):
    text = (DOCS / "reference" / "keys.md").read_text(encoding="utf-8")
    exec(text.split(f"<!-- run: {name} -->\n```python\n")[1].split("```")[0], space)
    return space


def test_the_examples_print_the_right_spelling_and_find_the_old_records_after_a_rename(once, capsys):
    example("path", once=once, __name__="shop.orders")
    assert capsys.readouterr().out == "key='id' names no parameter of charge(order); write key='order.id'\n"
    space = {"__name__": "shop.orders", "once": once}
    exec("@once(key='order.id')\ndef charge(order):\n    return {'charged': order['id']}\n", space)
    space["charge"]({"id": 1})
    renamed = example("rename", once=once)["take_payment"]
    assert (renamed({"id": 1}), renamed({"id": 2})) == ({"charged": 1}, {"paid": 2})
    factory = example("factory", once=once, __name__="shop.notify")
    assert (factory["sms"](1), factory["email"](1)) == ("sms", "email")


def charge(order, region="eu"):
    return order["id"]


@each(
    "place",
    [
        lambda once, function, key: once(key=key)(function),
        lambda once, function, key: once.batch(function, key=key),
        lambda once, function, key: aws.SqsWorker(once, "https://sqs.eu-west-1.amazonaws.com/1/q", function, key=key),
        lambda once, function, key: aws.on_sqs(once, key=key)(function),
        lambda once, function, key: aws.on_invoke(once, key=key)(function),
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
        == keys(lambda once: aws.on_sqs(once, key=key)(charge)(events.sqs(order)))
        == keys(lambda once: aws.on_invoke(once, key=key)(charge)(order, events.Context()))
        == ["n:(a,7)"]
    )


@each(
    ("key", "right"),
    [
        ("customer.id", "order.customer.id"),
        ("regin", "order.regin"),
        ("[shop, order.id]", "[order.shop, order.id]"),
        ("{shop: shop, id: order.id}", "{shop: order.shop, id: order.id}"),
        ("id || number", "order.id || order.number"),
        ("join('-', [shop, id])", "join('-', [order.shop, order.id])"),
        ("lines[0].sku", "order.lines[0].sku"),
        ('"an id"', "order.id"),
        ("[0].id", "order.id"),
        ("@", "order.id"),
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


@each(
    ("make", "says"),
    [
        (lambda once: once.checkpoint(print, name="n", key="id"), "key='id' does not start with item, .*; write key='item.id'"),
        (lambda _: web.Route(key="payment.id"), "key='payment.id' does not start with body, .*; write key='body.payment.id'"),
        (lambda once: once.per("1h", at="time")(charge), r"at='time' names no parameter of charge.*; write at='order\.time'"),
        (lambda once: once(key="order.id", fingerprint="time")(charge), r"fingerprint='time' names no parameter of charge.*; write fingerprint='order\.time'"),
        (lambda once: Redrive(once, Queue("dead"), Queue("to"), name="n", key="id"), "key='id' does not start with body, .*; write key='body.id'"),
        (lambda once: pipe.Pipe(once, pipe.Function("json:loads"), key="line.id"), "no parameter of loads.s.; write key='s.id'"),
        (lambda _: pipe.Command(["echo", "{id}"], Stop(), 9), "{id} does not start with line, .*; write {line.id}"),
    ],
)  # fmt: skip
def test_where_no_function_is_known_the_fixed_name_is_told_and_other_options_are_checked(once, make, says):
    with pytest.raises(ValueError, match=says):
        make(once)


def test_a_callable_that_names_no_input_is_refused(once):
    for key in (lambda customer, country: 1, lambda order, customer: 1):
        with pytest.raises(ValueError, match=r"customer.*, which names no parameter of charge\(order, region\): let"):
            once(key=key)(charge)
    with pytest.raises(ValueError, match=r"key= takes order, which names no parameter of nothing\(\)"):

        @aws.on_sqs(once, key=lambda order: order["id"])
        def nothing(): ...
