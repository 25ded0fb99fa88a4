"""Two functions that are not the same never share keys without being told to."""

import asyncio
import functools

import pytest

from onceward import Once
from onceward.aws import on_sqs
from onceward.stores.memory import MemoryStore
from places import DOCS
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
        lambda once, function: on_sqs(once, key="n.id")(function),
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


def test_functions_that_were_given_names_are_left_alone(once):
    sent = []
    sms = once(key="n", name="sms")(sender("sms", sent))
    email = once(key="n", name="email")(sender("email", sent))
    both = [once(key="n", name="both")(sender(channel, sent)) for channel in ("sms", "email")]
    assert (sms(1), email(1)) == ("sms", "email")
    assert [send(1) for send in both] == ["sms", "sms"]
    assert once.using(name="more").run(1, sender("fax", sent), 1) == "fax"
    assert once.using(name="more").run(2, sender("pigeon", sent), 2) == "pigeon"


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

    class Left(Base):
        pass

    class Right(Base):
        pass

    for call in (
        lambda kind: kind().send(1),
        lambda kind: once.run(2, kind().bare, 2),
        lambda kind: kind().report(),
        lambda kind: kind.post(1),
    ):
        assert call(Left) == call(Left) == "Left"
        with pytest.raises(ValueError, match="class whose method it is"):
            call(Right)
    assert len(runs) == 1  # two instances of a class share its keys
    assert Left.plain(1) == Right.plain(1) == 1
    assert Left().shared(1) == Right().shared(1) == "Left"


def example(name, **space):
    text = (DOCS / "reference" / "keys.md").read_text(encoding="utf-8")
    exec(text.split(f"<!-- run: {name} -->\n```python\n")[1].split("```")[0], space)
    return space


def test_the_example_of_a_path_prints_the_right_spelling(once, capsys):
    example("path", once=once, __name__="shop.orders")
    assert capsys.readouterr().out == "key='id' names no parameter of charge(order); write key='order.id'\n"


def test_the_example_of_a_rename_finds_the_old_records(once):
    space = {"__name__": "shop.orders", "once": once}
    exec("@once(key='order.id')\ndef charge(order):\n    return {'charged': order['id']}\n", space)
    space["charge"]({"id": 1})
    renamed = example("rename", once=once)["take_payment"]
    assert (renamed({"id": 1}), renamed({"id": 2})) == ({"charged": 1}, {"paid": 2})


def test_the_example_of_a_factory_runs(once):
    space = example("factory", once=once, __name__="shop.notify")
    assert (space["sms"](1), space["email"](1)) == ("sms", "email")
