"""What the ledger holds of a person is erased, on every ledger, and the keys go on answering."""

import base64
import dataclasses
import os
import uuid
from typing import NamedTuple

import pytest

from commands.command_line import Cli
from onceward import Completed, Once, ResultUnavailable
from onceward.cli.erase import _user as user_of_erase
from onceward.http.answer import Answer, recorded
from onceward.outbox import MessageNotSent, register
from onceward.stores import audit
from tables import each
from waiting import until

pytestmark = pytest.mark.sampled(ledger=2)

SEAL = (base64.b32encode, base64.b32decode)


@dataclasses.dataclass
class Receipt:
    email: str
    total: int


@pytest.fixture
def once(ledger):
    with_ledger = Once(ledger.url, name="shop")
    yield with_ledger
    with_ledger.close()


def erased(once, *args, **options):
    return [(one.key, one.left) for one in once.ledger.erase(*args, who="ada", **options)]


def result_of(once, key, **options):
    with pytest.raises(Completed) as done:
        once.acquire(key, **options)
    return done.value.result


def test_values_below_keys_that_are_no_texts_go_too(once):
    once.acquire("ann").complete({(1, 2): {"email": "ann@b.c", "name": "Ann"}, 3: {"email": "bob@b.c"}})
    assert erased(once, "*.email", "ann@b.c", blank=["*.name"]) == [("shop:ann", None)]
    assert result_of(once, "ann") == {(1, 2): {"email": "(erased)", "name": "(erased)"}, 3: {"email": "(erased)"}}


def test_values_at_paths_go_wherever_they_stand_and_times_and_other_people_stay(once):
    lists = {"to": [{"customer": {"email": "ann@b.c", "age": 41, "name": "Ann"}, "total": 7}], "at": (1, 2)}
    once.acquire("ann").complete(lists)
    once.acquire("bob").complete({"to": {"customer": {"email": "bob@b.c"}}})
    before, _ = once.ledger.show("shop:ann")
    found = erased(once, "to.customer.email", "ann@b.c", blank=["to.customer.age", "to.*.name"])
    assert found == [("shop:ann", None)]
    after, _ = once.ledger.show("shop:ann")
    assert after == before._replace(
        result=after.result, beat=before.beat + 1, updated_at=after.updated_at, history=None
    )
    assert result_of(once, "ann") == {
        "to": [{"customer": {"email": "(erased)", "age": None, "name": "(erased)"}, "total": 7}],
        "at": (1, 2),
    }
    assert result_of(once, "bob") == {"to": {"customer": {"email": "bob@b.c"}}}
    (entry,) = audit.entries_of(once.ledger, "shop:ann")
    assert (entry.deed.who, entry.deed.action, entry.end) == ("ada", "erase", "done")
    assert "ann@b.c" not in "".join(str(record) for record, _ in once.ledger.records())
    assert erased(once, "to.customer.email", "ann@b.c") == []


def test_without_paths_the_whole_result_goes_and_the_effect_is_not_made_again(once):
    ran = []

    @once(key="order", retention=None)
    def charge(order: int) -> Receipt:
        ran.append(order)
        return Receipt("ann@b.c", order)

    charge(7)
    ((key, left),) = erased(once, "email", "ann@b.c")
    assert (left, once.ledger.show(key)[0].expires_at) == (None, None)
    with pytest.raises(ResultUnavailable, match="it was erased"):
        charge(7)
    assert ran == [7]


def test_a_result_of_a_type_with_names_and_the_body_of_an_http_response(once):
    once.acquire("a").complete(Receipt("ann@b.c", 3))
    answer = Answer(201, [("content-type", "application/json")], b'{"customer":{"email":"ann@b.c"},"id":7}')
    once.acquire("b").complete(recorded(answer))
    assert erased(once, "email", "ann@b.c", blank=["total"]) == [("shop:a", None)]
    assert erased(once, "body.customer.email", "ann@b.c", blank=["body.id"]) == [("shop:b", None)]
    assert result_of(once, "b").body == '{"customer":{"email":"(erased)"},"id":null}'
    assert (result_of(once, "a").email, result_of(once, "a").total) == ("(erased)", None)


def test_sealed_results_are_opened_and_sealed_again(once):
    once.acquire("k", seal=SEAL).complete({"email": "ann@b.c", "n": 1})
    ((key, left),) = erased(once, "email", "ann@b.c")
    assert key == "shop:k"
    assert "it is sealed: give" in left
    assert erased(once, "email", "ann@b.c", blank=["n"], seal=SEAL) == [("shop:k", None)]
    record, _ = once.ledger.show("shop:k")
    assert record.result.startswith('{"$onceward":1,"sealed')
    assert result_of(once, "k", seal=SEAL) == {"email": "(erased)", "n": None}


def test_results_of_steps_go_too(once):
    claim = once.acquire("k")
    claim.step("mail", lambda: {"email": "ann@b.c"})
    claim.complete("done")
    assert erased(once, "email", "ann@b.c", blank=["email"]) == [("shop:k", None)]
    record, _ = once.ledger.show("shop:k")
    assert "(erased)" in record.steps
    assert record.result == '"done"'


def test_what_may_run_again_is_left_and_named(once):
    claim = once.acquire("k")
    claim.step("mail", lambda: {"email": "ann@b.c"})
    ((key, left),) = erased(once, "email", "ann@b.c")
    assert (key, left.partition(",")[0]) == ("shop:k", "it is IN_PROGRESS")
    claim.park("why")
    assert "it is PARKED" in erased(once, "email", "ann@b.c")[0][1]


@each("path", ["", "a..b", ".a"])
def test_a_path_without_a_name_is_refused(once, path):
    with pytest.raises(ValueError, match="give paths of names"):
        once.ledger.erase(path, "x", who="ada")


def test_a_namespace_is_retired_before_its_records_expire(once):
    once.acquire("k").complete(1)
    once.acquire("k", name="other").complete(1)
    once.acquire("held")
    assert until(lambda: [record.key for record in once.ledger.retire("shop:", 0)]) == ["shop:k"]
    assert sorted(record.key for record, _ in once.ledger.records()) == ["other:k", "shop:held"]
    assert list(once.ledger.retire("shop:", 3600)) == []
    with pytest.raises(ValueError, match="prefix is empty"):
        next(once.ledger.retire("", 0))


def test_a_user_without_a_name_is_its_number(monkeypatch):
    def nameless():
        raise KeyError("uid not found: 1000680000")

    monkeypatch.setattr("onceward.cli.erase.getuser", nameless)
    assert user_of_erase() == f"user {os.getuid()}"


@pytest.mark.sampled("sqlite")
def test_the_commands(once, tmp_path):
    run = Cli(tmp_path).run
    once.acquire("k").complete({"email": "ann@b.c"})
    done = run("erase", "email=ann@b.c", "--blank", "email", "--store", once.store.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"shop:k: erased\n", "1 record(s) erased, 0 left\n")
    assert run("erase", "email", "--store", once.store.url).returncode == 2
    assert run("erase", "email=\udcff", "--store", once.store.url).returncode == 2
    done = run("purge", "--prefix", "shop:", "--store", once.store.url)
    assert (done.returncode, "together" in done.stderr) == (2, True)
    command = ("purge", "--prefix", "shop:", "--older-than", "0s", "--json", "--store", once.store.url)
    assert until(lambda: run(*command).stdout == b'{"purged":1}\n')


class Person(NamedTuple):
    email: str
    age: int


def test_values_are_found_and_blanked_in_whatever_form_they_are_kept_and_the_rest_stays_to_the_byte(once):
    value = {
        "emails": ["ann@b.c", "x"],
        "tagged": {"ann@b.c"},
        "person": Person("ann@b.c", 41),
        "customer": {"id": uuid.UUID(int=5), "$schema": "s", 1: "one"},
        "body": '\n{"$schema": "q", "email": "ann@b.c", "price": 10.00, "big": 1e400}',
        "other": "[1.50, 2.00]",
    }
    once.acquire("k").complete(value)
    other, left = value["other"], set(value)
    for path, wanted in (
        ("emails", "ann@b.c"),
        ("tagged", "ann@b.c"),
        ("person.email", "ann@b.c"),
        ("body.email", "ann@b.c"),
        ("customer.id", str(uuid.UUID(int=5))),
    ):
        assert erased(once, path, wanted, blank=[path]) == [("shop:k", None)], path
        assert erased(once, path, wanted, blank=[path]) == [], path
    found = result_of(once, "k")
    assert set(found) == left
    assert (found["emails"], found["tagged"], found["other"]) == (None, None, other)
    assert found["person"] == Person("(erased)", 41)
    assert found["customer"] == {"id": None, "$schema": "s", 1: "one"}
    assert found["body"] == '{"$schema":"q","email":"(erased)","price":10.00,"big":1e400}'


def test_a_large_result_of_a_step_goes_with_its_key_and_not_before_it(once):
    large = {"email": "ann@b.c", "more": "x" * 20_000}
    claim = once.acquire("k")
    claim.step("mail", lambda: large)
    claim.release()
    assert len(list(once.ledger.records("shop:step-"))) == 1
    for options in ({}, {"blank": ["more"]}, {"prefix": "shop:"}):
        ((key, left),) = erased(once, "email", "ann@b.c", **options)
        assert (key, "it is RELEASED" in left) == ("shop:k", True)
    assert until(lambda: once.ledger.show("shop:k")[1] > 0)
    assert list(once.ledger.retire("shop:", 0)) == []
    claim = once.acquire("k")
    assert claim.step("mail", lambda: "again") == large
    claim.complete("done")
    assert erased(once, "email", "ann@b.c", blank=["more"]) == [("shop:k", None)]
    assert list(once.ledger.records("shop:step-")) == []
    assert result_of(once, "k") == "done"


def test_a_key_that_has_a_new_record_since_it_was_found_is_left(once, monkeypatch):
    once.acquire("k").complete({"email": "ann@b.c"})
    begin = audit.begin

    def another(ledger, deed):
        once.ledger.clear("shop:k")
        once.acquire("k").complete({"email": "bob@b.c"})
        return begin(ledger, deed)

    monkeypatch.setattr(audit, "begin", another)
    assert erased(once, "email", "ann@b.c") == []
    assert result_of(once, "k") == {"email": "bob@b.c"}


def test_what_is_not_sent_or_cannot_be_read_is_named_and_the_others_are_erased(once):
    register("erased-nowhere", lambda _: Nowhere())
    for key in ("a", "c"):
        once.acquire(key).complete({"email": "ann@b.c"})
    claim = once.acquire("b")
    claim.send("erased-nowhere:x", {"email": "ann@b.c"})
    claim.complete(1)
    deep = once.acquire("d")
    deep.complete({"body": "[" * 900 + "]" * 900, "email": "x"})
    found = dict(erased(once, "email", "ann@b.c"))
    assert (found["shop:a"], found["shop:c"]) == (None, None)
    assert "unsent messages" in found["shop:b"]
    assert result_of(once, "d")["email"] == "x"


class Nowhere:
    batch = 1

    def check(self, message):
        pass

    def send(self, messages):
        return [MessageNotSent("it is away")] * len(messages)

    def close(self):
        pass
