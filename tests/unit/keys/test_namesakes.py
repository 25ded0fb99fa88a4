"""Two functions that are not the same never share keys without being told to."""

import asyncio
import functools
import importlib
import sys
import types

import pytest

from onceward import Claim, Once
from onceward.aws import SqsWorker, on_sqs
from onceward.stores.memory import MemoryStore
from places import DOCS
from tables import each


def sender(channel, sent):
    def send(n: int) -> str:
        sent.append((channel, n))
        return channel

    return send


class Channel:
    def __init__(self, name):
        self.name = name


def with_object(channel):
    def send(n: int) -> str:
        return channel.name

    return send


def with_default(channel):
    def send(n, channel=channel):
        return channel

    return send


def with_function(channel):
    def by_sms(n):
        return n

    def by_mail(n):
        return n

    inner = by_sms if channel == "sms" else by_mail

    def send(n):
        return inner(n)

    return send


def decorated(channel):
    def send(n):
        return channel

    @functools.wraps(send)
    def logged(*args):
        return send(*args)

    return logged


def in_a_tuple(channel):
    given = (channel, object)

    def send(n):
        return given[0]

    return send


FACTORIES = [with_object, with_default, with_function, decorated, in_a_tuple]


def contents(factory, name):
    return Channel(name) if factory is with_object else name


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


@pytest.mark.slow
@each("factory", FACTORIES)
def test_closures_that_differ_in_any_way_are_refused(factory):
    once = Once(MemoryStore())
    first = once(key="n")(factory(contents(factory, "sms")))
    with pytest.raises(ValueError, match="name="):
        once(key="n")(factory(contents(factory, "email")))
    with pytest.raises(ValueError, match="name="):
        once.run(1, factory(contents(factory, "fax")), 1)
    assert first(1) == "sms" or factory in (with_object, with_function)


APPLIED = {
    "decorator": lambda once, function: once(key="n")(function),
    "batch": lambda once, function: once.batch(function, key="n"),
    "checkpoint": lambda once, function: once.checkpoint(function, key="item.id", count=1),
    "per": lambda once, function: once.per("1h")(function),
    "on_sqs": lambda once, function: on_sqs(once, key="n.id")(function),
    "SqsWorker": lambda once, function: SqsWorker(
        once, "https://sqs.eu-west-1.amazonaws.com/1/q", function, key="n.id"
    ),
}


@pytest.mark.slow
@each("apply", APPLIED.values())
def test_wherever_a_function_gives_its_name_a_namesake_and_a_partial_are_refused(once, apply):
    def send(channel, n): ...

    kept = [apply(once, sender("sms", []))]
    with pytest.raises(ValueError, match="name="):
        kept.append(apply(once, sender("email", [])))
    with pytest.raises(ValueError, match=r"partial.*give name="):
        apply(once, functools.partial(send, "sms"))


def test_functions_that_were_given_names_are_left_alone(once):
    sent = []
    sms = once(key="n", name="sms")(sender("sms", sent))
    email = once(key="n", name="email")(sender("email", sent))
    both = [once(key="n", name="both")(sender(channel, sent)) for channel in ("sms", "email")]
    assert (sms(1), email(1)) == ("sms", "email")
    assert [send(1) for send in both] == ["sms", "sms"]
    assert once.using(name="more").run(1, sender("fax", sent), 1) == "fax"
    assert once.using(name="more").run(2, sender("pigeon", sent), 2) == "pigeon"


TWICE = """
handlers = []

@handlers.append
@once(key="n")
def _(n):
    return "first"

@handlers.append
@once(key="n")
def _(n):
    return "second"
"""


def run_module(folder, monkeypatch, once, text=TWICE):
    (folder / "twice_over.py").write_text("from once_of_test import once\n" + text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "once_of_test", types.SimpleNamespace(once=once))
    monkeypatch.delitem(sys.modules, "twice_over", raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("twice_over")


def test_two_functions_that_a_module_gives_one_name_are_refused(once, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"twice_over\._: .* line \d+ of .*twice_over\.py.*name="):
        run_module(tmp_path, monkeypatch, once)


def test_a_function_and_what_wraps_it_share_their_keys(once):
    def send(n):
        return n

    @functools.wraps(send)
    def logged(n):
        return send(n)

    assert once.run(1, send, 1) == once.run(1, logged, 2) == once(key="n")(logged)(1) == 1


def test_module_loaded_again_while_its_functions_are_in_use_keeps_working(once, tmp_path, monkeypatch):
    text = '@once(key="n")\ndef job(n):\n    return RATE\n'
    module = run_module(tmp_path, monkeypatch, once, text.replace("RATE", "1"))
    kept = module.job
    (tmp_path / "twice_over.py").write_text("from once_of_test import once\n# edited\n\n" + text.replace("RATE", "22"))
    importlib.invalidate_caches()
    importlib.reload(module)
    assert (kept(1), module.job(1), module.job(2), kept(3)) == (1, 1, 22, 1)


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


def test_a_function_that_calls_itself_is_guarded(once):
    def make():
        @once(key="n")
        def count(n: int) -> int:
            return 0 if n == 0 else 1 + count(n - 1)

        return count

    assert make()(3) == make()(3) == 3

    def again(n):
        return 0 if n == 0 else 1 + again(n - 1)

    assert once.run("k", again, 2) == once.run("k", again, 3) == 2


def test_an_application_that_its_handlers_lead_to_is_made_again(once):
    def create():
        handlers, log = {}, []
        write = log.append

        @once(key="order")
        def charge(order):
            write((order, len(handlers)))

        handlers["charge"] = charge
        return handlers

    for number in range(3):
        create()["charge"](number)
    kept = create()
    with pytest.raises(ValueError, match="name="):
        create()
    assert list(kept) == ["charge"]


class Sender:
    def send(self, n: int, claim: Claim) -> str:
        return type(self).__name__

    @classmethod
    def post(cls, n: int) -> str:
        return cls.__name__


class Sms(Sender):
    pass


class Email(Sender):
    pass


def test_a_method_that_two_classes_inherit_is_not_run_for_both(once):
    for name in ("send", "post"):
        assert once.run(1, getattr(Sms(), name), 1) == "Sms"
        for _ in range(2):
            with pytest.raises(ValueError, match=r"class whose method it is.*name="):
                once.run(1, getattr(Email(), name), 1)
    assert once.run(2, Sms().send, 2) == "Sms"
    assert once.using(name="email").run(1, Email().send, 1) == "Email"


def test_a_decorated_method_that_two_classes_inherit_is_not_run_for_both(once):
    runs = []

    class Base:
        @once(key="n")
        def send(self, n):
            runs.append(self)
            return type(self).__name__

        @once(key="n")
        async def send_async(self, n):
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
        lambda kind: asyncio.run(kind().send_async(1)),
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
