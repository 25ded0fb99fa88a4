"""What stands in the store: it can be read, it runs nothing, and what would not come back is refused."""

import decimal
import json
import sys
import types
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import msgspec
import pydantic
import pytest
from test_codec import NOW, RECEIPT, Colour, Hostile, Money, Receipt, replay

from onceward import Once, ResultUnavailable, ResultWarning
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec, decode_exception, encode_exception
from onceward.stores.memory import MemoryStore
from tables import each


def test_values_are_stored_so_that_a_person_can_read_them():
    assert Codec().encode({"id": 7, "ok": True, "name": "ü"}) == '{"id":7,"ok":true,"name":"ü"}'
    assert json.loads(Codec(Receipt).encode(RECEIPT))["total"] == {"amount": "9.90", "currency": "EUR"}
    tagged = [1, {"$datetime": "2026-11-21T08:00:00+00:00"}, {"$bytes": {"text": "abc"}}, {"$decimal": "1.5"}]
    text = Codec().encode((1, NOW, b"abc", decimal.Decimal("1.5")))
    assert json.loads(text) == {"$onceward": 1, "value": {"$tuple": tagged}}


@each(
    "text",
    [
        '{"$onceward":1,"value":{"$object":"os:system","fields":{}}}',
        '{"$onceward":1,"value":{"$object":"subprocess:Popen","fields":{"args":"true"}}}',
        '{"$onceward":1,"value":{"$uuid":"nonsense"}}',
        '{"$onceward":1,"value":{"$surprise":1}}',
        '{"$onceward":1,"value":{"$datetime":["2026-01-01T00:00:00","No/Where",0]}}',
        "not json",
    ],
)
def test_a_record_that_makes_no_sense_is_refused_and_nothing_is_called(text):
    with pytest.raises(NotReplayable):
        Codec().decode(text)


class Eager(types.ModuleType):
    """As importlib's lazy modules are: any look at it runs code."""

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")


class Telling(type):
    def __getattr__(cls, name):
        raise AssertionError(f"asked for {name}")


class Told(metaclass=Telling):
    inner = Money(decimal.Decimal(1))


TELLING = Told()


def stored(tag, name, **rest):
    rest = {"fields": {}, "name": "RED", "items": [], "value": {}, **rest}
    return msgspec.json.encode({"$onceward": 1, "value": {tag: name, **rest}}).decode()


HERE = ["Told.Inner", "Told.inner.__class__", "TELLING.__class__", "Money.__init__.__globals__", "json.decoder", ""]
ELSEWHERE = ["eager:Thing", "eager:Thing.Inner", "builtins:dict", "time:struct_time", ""]


@each("name", [*ELSEWHERE, *(f"{__name__}:{path}" for path in HERE)])
def test_looking_for_a_class_runs_nothing_and_finds_nothing_but_classes(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "eager", Eager("eager"))
    for tag in ("$object", "$enum", "$namedtuple", "$pydantic"):
        with pytest.raises(NotReplayable):
            Codec().decode(stored(tag, name))


@each(
    ("tag", "name"),
    [("$enum", "Money"), ("$object", "Colour"), ("$namedtuple", "Money"), ("$pydantic", "Row"), ("$object", "Row")],
)
def test_a_class_is_made_as_what_it_is_and_as_nothing_else(tag, name):
    with pytest.raises(NotReplayable):
        Codec().decode(stored(tag, f"{__name__}:{name}", items=[1, []]))


@each("stored", [b"\x00", '{"$onceward":1,"raised":[]}'])
def test_a_stored_result_that_is_no_text_or_makes_no_sense_is_unavailable(stored):
    once = Once(MemoryStore(), name="n", final=(ValueError,))
    once.run("k", int)
    once.store.records["n:k"] = once.store.records["n:k"]._replace(result=stored)
    with pytest.raises(ResultUnavailable):
        once.run("k", int)


def test_a_record_sets_nothing_but_fields_and_one_of_older_release_gets_new_ones_defaults_or_is_refused():
    text = Codec().encode(Money(decimal.Decimal(1)))
    back = Codec().decode(text.replace('"currency"', '"__dict__":{"amount":0},"pay":"x","currency"'))
    assert vars(back) == {"amount": decimal.Decimal(1), "currency": "EUR"}
    old = text.replace(',"currency":"EUR"', "")
    assert Codec().decode(old) == Money(decimal.Decimal(1), "EUR")
    gone = Codec().encode(Colour.RED).replace("RED", "BLUE")
    for older, told in ((old.replace('"amount":{"$decimal":"1"}', ""), "amount"), (gone, "BLUE")):
        with pytest.raises(NotReplayable, match=told):
            Codec().decode(older)


@dataclass
class Slotted:
    __slots__ = ("_seen", "id")
    id: int


class Options(pydantic.BaseModel):
    retries: int = 3
    note: str = ""


class MoreOptions(Options, extra="allow"):
    inner: Options = Options()


@each(("value", "name"), [(Slotted(1), "_seen"), (Money(decimal.Decimal(1)), "extra")])
def test_an_object_with_more_than_its_fields_is_refused_and_not_cut(value, name):
    setattr(value, name, 5)
    with pytest.raises(NotReplayable):
        Codec().encode(value)


@each("annotation", [object, Options, MoreOptions])
@each("value", [Options(), Options(retries=3), Options(note="x"), MoreOptions(inner=Options(note=""), other=1)])
def test_a_model_replays_with_what_was_set_and_what_was_not(annotation, value):
    back = replay(value, annotation)
    assert back == value
    assert back.model_fields_set == value.model_fields_set
    assert back.model_dump(exclude_unset=True) == value.model_dump(exclude_unset=True)


def test_a_model_recorded_by_an_earlier_version_replays():
    text = '{"$onceward":1,"value":{"$pydantic":"test_codec_records:MoreOptions","value":{"retries":1,"other":2}}}'
    back = Codec().decode(text)
    assert (back.retries, back.other, back.model_fields_set) == (1, 2, {"retries", "other"})


class NotEncodable:
    pass


@each("annotation", [NotEncodable, list[NotEncodable], NotEncodable | None])
def test_an_annotation_that_cannot_be_encoded_fails_at_decorating(annotation):
    def handle(order):
        raise AssertionError

    handle.__annotations__["return"] = annotation
    with pytest.raises(TypeError, match="cannot be recorded"):
        Once(MemoryStore())(key="order")(handle)


@each("annotation", [NoReturn, Self, None, Any, "int"])
def test_annotations_that_leave_the_type_open_are_accepted(annotation):
    def handle(order):
        return order

    handle.__annotations__["return"] = annotation
    guarded = Once(MemoryStore())(key="order")(handle)
    assert guarded((1, 2)) == guarded((1, 2)) == (1, 2)


class Declined(Exception):
    def __init__(self, order, *, code):
        super().__init__(f"order {order} declined")
        self.code = code


class Awkward(Exception):
    def __new__(cls, *, needed):
        return super().__new__(cls)

    def __init__(self, *, needed):
        super().__init__(needed)


@each(
    "error",
    [
        ValueError("a", 1),
        Declined(7, code=51),
        KeyError(("a", 1)),
        ValueError("\udcff"),
        FileNotFoundError(2, "gone", "file"),
        StopIteration(3),
    ],
)
def test_exception_comes_back_with_its_type_text_arguments_and_attributes(error):
    back = decode_exception(encode_exception(error), [Exception])
    assert type(back) is type(error)
    assert (back.args, str(back), back.__dict__) == (error.args, str(error), error.__dict__)
    assert getattr(back, "filename", None) == getattr(error, "filename", None)
    with pytest.raises(NotReplayable, match="not among"):  # the final ones
        decode_exception(encode_exception(error), [Awkward])


@each("error", [Awkward(needed=1), ValueError(Hostile()), ExceptionGroup("x", [ValueError()])])
def test_an_exception_that_would_not_come_back_is_refused(error):
    with pytest.raises(NotReplayable):
        encode_exception(error)


def test_a_result_of_exactly_the_limit_is_stored_and_one_byte_more_is_not():
    once = Once(MemoryStore(), max_result=10)
    assert once.run("fits", str, "12345678") == once.run("fits", str) == "12345678"
    with pytest.warns(ResultWarning, match="max_result=10"):
        once.run("more", str, "123456789")
