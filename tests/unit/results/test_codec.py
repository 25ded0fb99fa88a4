"""A replay is equal to the first answer and of the same type, or is refused; it is never silently something else."""

import datetime as dt
import decimal
import enum
import json
import math
import os
import sqlite3
import subprocess
import sys
import types
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Never, NoReturn, Self, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Once, ResultUnavailable, ResultWarning
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec, decode_exception, encode_exception
from onceward.results.equality import same
from onceward.stores.memory import MemoryStore
from tables import each


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 1


class Row(NamedTuple):
    id: int
    tags: tuple[str, ...]


class Item(TypedDict):
    id: int
    price: decimal.Decimal


class Named(Row):
    """A NamedTuple with attributes of its own."""


@dataclass
class Mapped(dict):
    id: int


@dataclass
class Slotted:
    __slots__ = ("_seen", "id")
    id: int


@dataclass(frozen=True)
class Frozen:
    id: int


class Options(pydantic.BaseModel):
    retries: int = 3
    note: str = ""


class MoreOptions(Options, extra="allow"):
    inner: Options = Options()


@dataclass
class Money:
    amount: decimal.Decimal
    currency: str = "EUR"


@dataclass(frozen=True, slots=True)
class Receipt:
    id: uuid.UUID
    total: Money
    at: dt.datetime
    lines: tuple[Row, ...] = ()
    colour: Colour = Colour.RED


class Invoice(msgspec.Struct):
    number: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class Model(pydantic.BaseModel):
    x: int = pydantic.Field(alias="X")
    when: dt.datetime
    inner: Money


class Extra(pydantic.BaseModel, extra="allow"):
    x: int


class Numbers(pydantic.RootModel[list[int]]):
    pass


def replay(value, annotation=object):
    codec = Codec(annotation)
    text = codec.encode(value)
    json.loads(text)  # what stands in the store is JSON, for a person and their tools
    return codec.decode(text)


def exact(value):
    """A value with all its types, comparable: NaN equals itself, 1 is not True, 0.0 is not -0.0."""
    if isinstance(value, (list, tuple)):
        return (type(value), [exact(item) for item in value])
    if isinstance(value, dict):
        return (type(value), [(exact(k), exact(v)) for k, v in value.items()])
    if isinstance(value, Money):
        return (type(value), exact(value.amount), exact(value.currency))
    if isinstance(value, (set, frozenset)):
        return (type(value), sorted(repr(exact(item)) for item in value))
    if isinstance(value, (dt.datetime, dt.time)):
        return (type(value), value.isoformat(), value.fold, repr(value.tzinfo))
    return (type(value), repr(value))


zones = st.sampled_from(
    [None, dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.binary().map(bytearray)
    | st.uuids()
    | st.decimals(allow_nan=True).filter(lambda d: not d.is_snan())
    | st.dates()
    | st.times()
    | st.datetimes(timezones=zones)
    | st.timedeltas()
    | st.complex_numbers()
    | st.sampled_from(
        [Colour.RED, Size.BIG, Row(1, ("a",)), Money(decimal.Decimal("1.10")), Invoice(1), Invoice(2, "x")]
    )
)
hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.uuids()
    | st.tuples(st.integers(), st.text())
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$tuple", "$onceward", "value", ""]), inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
        | st.builds(Money, inner, st.text())
    ),
    max_leaves=8,
)


@given(values)
def test_any_standard_value_replays_equal_and_of_the_same_type(value):
    assert exact(replay(value)) == exact(value)


@given(
    values,
    st.sampled_from(
        [
            int,
            float,
            str,
            bytes,
            list[int],
            list[float],
            dict[str, str],
            tuple[int, ...],
            Money,
            Receipt,
            Item,
            Model,
            set[str],
            int | None,
            dt.datetime,
            dict,
            list,
            Any,
        ]
    ),
)
def test_a_value_of_another_type_than_annotated_replays_as_what_it_was(value, annotation):
    assert exact(replay(value, annotation)) == exact(value)


NOW = dt.datetime(2026, 11, 21, 8, 0, tzinfo=dt.UTC)
RECEIPT = Receipt(uuid.UUID(int=1), Money(decimal.Decimal("9.90")), NOW, (Row(1, ("a", "b")),))


@each(
    ("annotation", "value"),
    [
        (Receipt, RECEIPT),
        (list[Receipt], [RECEIPT]),
        (dict[int, Money], {1: Money(decimal.Decimal(1))}),
        (Invoice, Invoice(1)),
        (Row, Row(1, ())),
        (Item, {"id": 1, "price": decimal.Decimal("1.0")}),
        (Colour, Colour.RED),
        (Literal["a", "b"], "b"),
        (int | str | None, None),
        (Numbers, Numbers([1, 2])),
        (Extra, Extra(x=1, y=(1, 2))),
        (Model, Model(X=1, when=NOW, inner=Money(decimal.Decimal(2)))),
        (list[Model], [Model(X=1, when=NOW, inner=Money(decimal.Decimal(2)))]),
        (bytes, b"\x00\xff"),
        (tuple[int, str], (1, "a")),
        (set[int], {3, 1, 2}),
        (frozenset[str], frozenset("ab")),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
    ],
)
def test_result_of_its_annotated_type_replays_with_and_without_annotation(annotation, value):
    for stated in (annotation, object):
        back = replay(value, stated)
        assert back == value
        assert type(back) is type(value)


@each(
    ("annotation", "value"),
    [
        (list[float], [1]),
        (dict[str, float], {"a": 1}),
        (list[decimal.Decimal], [1]),
        (dict[str, str], {"a": Colour.RED}),
        (list[int], [Size.BIG]),
        (list[int], [True]),
        (list[bytes], [bytearray(b"x")]),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
        (list[list[int]], [(1, 2)]),
        (Money, Money(1)),
        (Money, Money(decimal.Decimal(1), Colour.RED)),
    ],
)
def test_part_that_only_equals_its_annotated_type_is_not_changed_into_it(annotation, value):
    assert exact(replay(value, annotation)) == exact(value)
    assert repr(replay(value, annotation)) == repr(value)


@each("value", [None, 0, False, "", [], {}, (), set(), 0.0, -0.0, b"", math.nan, math.inf, -math.inf])
def test_empty_and_odd_values_replay_as_they_are(value):
    assert exact(replay(value)) == exact(value)


@each(
    "value",
    [
        dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.datetime(2026, 10, 25, 2, 30, fold=1),
        dt.time(2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.time(2, 30, fold=1),
        dt.time(2, 30, tzinfo=dt.UTC),
    ],
)
def test_times_keep_their_zone_and_fold(value):
    assert exact(replay(value)) == exact(value)
    assert exact(replay(value, dt.datetime)) == exact(value)


def test_a_time_in_a_zone_that_cannot_be_named_is_refused():
    class Odd(dt.tzinfo):
        def utcoffset(self, when):
            return None

    with pytest.raises(NotReplayable):
        Codec().encode(dt.time(1, 2, tzinfo=Odd()))


def test_lone_surrogates_and_nul_replay():
    for value in ("\ud800", "a\x00b", {"\udfff": ["\ud800"]}, {"\ud800"}):
        assert replay(value) == value
        Codec().encode(value).encode()


def test_ints_of_any_size_replay():
    for value in (2**63, -(2**63) - 1, 10**5000, -(10**5000)):
        assert replay(value) == value


@each("make", [list, dict, set])
def test_what_contains_itself_is_refused(make):
    loop = [make()]
    loop.append(loop)
    for annotation in (object, list, list[list]):
        with pytest.raises(NotReplayable):
            Codec(annotation).encode(loop)


def test_what_is_nested_too_deeply_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotReplayable, match="nested too deeply"):
        Codec().encode(deep)


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __eq__ = __hash__ = __bool__ = __iter__ = __repr__


class Text(str):
    __slots__ = ()


class Sub(Money):
    pass


@each(
    "value",
    [
        object(),
        Hostile(),
        [Hostile()],
        Text("a"),
        {"a": Text("b")},
        iter([]),
        lambda: 1,
        ValueError(1),
        type,
        decimal.Decimal("sNaN"),
    ],
)
def test_what_would_not_come_back_is_refused(value):
    if isinstance(value, decimal.Decimal):
        assert exact(replay(value)) == exact(value)
        return
    with pytest.raises(NotReplayable):
        Codec().encode(value)


@dataclass
class SaysYes:
    x: int = field(default=0, compare=False)

    def __eq__(self, other):
        return True

    __hash__ = None


def test_a_class_that_equals_everything_is_compared_by_its_parts():
    assert replay(SaysYes(5)).x == 5
    value = SaysYes(5)
    value.more = 1
    for annotation in (object, SaysYes):
        with pytest.raises(NotReplayable):
            Codec(annotation).encode(value)


@dataclass
class Cached:
    x: int

    @cached_property
    def double(self):
        return self.x * 2


def test_a_cached_property_need_not_be_stored():
    value = Cached(2)
    assert value.double == 4
    assert replay(value).double == replay(value, Cached).double == 4


def test_a_subclass_of_the_annotated_type_stays_what_it_is():
    for annotation, value in ((Money, Sub(decimal.Decimal(1))), (list[Money], [Sub(decimal.Decimal(1))])):
        assert exact(replay(value, annotation)) == exact(value)


def test_classes_local_to_a_function_are_refused_unless_annotated():
    @dataclass
    class Local:
        x: int

    with pytest.raises(NotReplayable, match="not loaded"):
        Codec().encode(Local(1))
    assert replay(Local(1), Local) == Local(1)


# --- what stands in the store -----------------------------------------------------------------------------------------


def test_plain_values_are_stored_as_plain_json():
    assert Codec().encode({"id": 7, "ok": True, "name": "ü"}) == '{"id":7,"ok":true,"name":"ü"}'
    assert json.loads(Codec(Receipt).encode(RECEIPT))["total"] == {"amount": "9.90", "currency": "EUR"}


def test_other_values_are_stored_readable():
    text = Codec().encode((1, NOW, b"abc", decimal.Decimal("1.5")))
    assert json.loads(text) == {
        "$onceward": 1,
        "value": {
            "$tuple": [1, {"$datetime": "2026-11-21T08:00:00+00:00"}, {"$bytes": {"text": "abc"}}, {"$decimal": "1.5"}]
        },
    }


@each(
    "value",
    [
        {"$onceward": 1, "value": 1},
        {"$tuple": [1]},
        {"$object": "os:environ", "fields": {}},
        [{"$enum": "x:y"}],
        {"$dict": []},
    ],
)
def test_values_that_look_like_tags_are_not_taken_for_them(value):
    assert replay(value) == value
    assert replay(value, dict[str, Any]) == value


@each(
    "text",
    [
        '{"$onceward":1,"value":{"$object":"os:system","fields":{}}}',
        '{"$onceward":1,"value":{"$object":"not.loaded:Thing","fields":{}}}',
        '{"$onceward":1,"value":{"$object":"subprocess:Popen","fields":{"args":"true"}}}',
        '{"$onceward":1,"value":{"$enum":"tests.test_codec:Gone","name":"X"}}',
        '{"$onceward":1,"value":{"$uuid":"nonsense"}}',
        '{"$onceward":1,"value":{"$surprise":1}}',
        '{"$onceward":1,"value":{"$datetime":["2026-01-01T00:00:00","No/Where",0]}}',
        "not json",
        "",
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


@each(
    "name",
    [
        "hostile:Thing",
        "hostile:Thing.Inner",
        "eager:Thing",
        "test_codec:Told",
        "test_codec:Told.Inner",
        "test_codec:Told.inner",
        "test_codec:Told.inner.__class__",
        "test_codec:TELLING.__class__",
        "test_codec:Money.__init__.__globals__",
        "test_codec:os.environ",
        "test_codec:dt.datetime",
        "builtins:tuple",
        "builtins:dict",
        "time:struct_time",
        "test_codec:",
        ":",
        "",
    ],
)
def test_looking_for_a_class_runs_nothing_and_finds_nothing_but_classes(name, monkeypatch):
    hostile = types.ModuleType("hostile")
    hostile.__getattr__ = lambda name: pytest.fail(f"asked for {name}")
    monkeypatch.setitem(sys.modules, "hostile", hostile)
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


def test_a_record_sets_nothing_but_the_fields_of_a_class():
    text = Codec().encode(Money(decimal.Decimal(1)))
    back = Codec().decode(text.replace('"currency"', '"__dict__":{"amount":0},"pay":"x","currency"'))
    assert vars(back) == {"amount": decimal.Decimal(1), "currency": "EUR"}


@each("stored", [b"\x00", b'{"$onceward":1,"raised"', '{"$onceward":1,"raised":[]}', '{"$onceward":1,"raised"'])
def test_a_stored_result_that_is_no_text_or_makes_no_sense_is_unavailable(stored):
    once = Once(MemoryStore(), name="n", final=(ValueError,))
    once.run("k", int)
    once.store.records["n:k"] = once.store.records["n:k"]._replace(result=stored)
    with pytest.raises(ResultUnavailable):
        once.run("k", int)


def test_a_record_of_older_release_gets_new_fields_defaults_or_is_refused():
    old = Codec().encode(Money(decimal.Decimal(1))).replace(',"currency":"EUR"', "")
    assert Codec().decode(old) == Money(decimal.Decimal(1), "EUR")
    older = old.replace('"amount":{"$decimal":"1"}', "")
    with pytest.raises(NotReplayable, match="amount"):
        Codec().decode(older)


def test_a_member_that_an_enum_no_longer_has_is_refused():
    with pytest.raises(NotReplayable):
        Codec().decode(Codec().encode(Colour.RED).replace("RED", "BLUE"))


# --- what else an object is --------------------------------------------------------------------------------------------


def with_attribute(value, name, given):
    object.__setattr__(value, name, given)
    return value


def with_item(value, name, given):
    value[name] = given
    return value


@each(
    "value",
    [
        with_attribute(Named(1, ()), "extra", 5),
        with_item(Mapped(1), "a", 1),
        with_attribute(Slotted(1), "_seen", True),
        with_attribute(Money(decimal.Decimal(1)), "extra", 5),
        {with_attribute(Frozen(1), "extra", 5)},
    ],
)
def test_an_object_with_more_than_its_fields_is_refused_and_not_cut(value):
    with pytest.raises(NotReplayable):
        Codec().encode(value)


def test_an_object_that_has_its_fields_alone_replays():
    for value in (Named(1, ("a",)), Slotted(1), {Frozen(1), Frozen(2)}, {math.nan, 0.0}, frozenset({-0.0, None})):
        assert same(replay(value), value)


@each("annotation", [object, Options, list[Options], MoreOptions, Any])
@each(
    "value",
    [
        Options(),
        Options(retries=3),
        Options(note="x"),
        Options(retries=1, note="x"),
        MoreOptions(),
        MoreOptions(inner=Options(note="")),
        MoreOptions(other=1, retries=2),
    ],
)
def test_a_model_replays_with_what_was_set_and_what_was_not(annotation, value):
    if annotation == list[Options]:
        value = [value]
    back = replay(value, annotation)
    assert same(back, value)
    for one, other in zip(back, value, strict=True) if isinstance(value, list) else [(back, value)]:
        assert one == other
        assert one.model_fields_set == other.model_fields_set
        assert one.model_dump(exclude_unset=True) == other.model_dump(exclude_unset=True)


def test_a_model_recorded_by_an_earlier_version_replays():
    text = '{"$onceward":1,"value":{"$pydantic":"test_codec:MoreOptions","value":{"retries":1,"other":2}}}'
    back = Codec().decode(text)
    assert (back.retries, back.other, back.model_fields_set) == (1, 2, {"retries", "other"})


# --- annotations --------------------------------------------------------------------------------------------------------


class NotEncodable:
    pass


@each("annotation", [NotEncodable, list[NotEncodable], dict[str, NotEncodable], NotEncodable | None, type, complex])
def test_an_annotation_that_cannot_be_encoded_fails_at_decorating(annotation):
    def handle(order):
        raise AssertionError

    handle.__annotations__["return"] = annotation
    with pytest.raises(TypeError, match="cannot be recorded"):
        Once(MemoryStore())(key="order")(handle)


@each("annotation", [NoReturn, Never, Self, None, Any, object, "int", "None"])
def test_annotations_that_leave_the_type_open_are_accepted(annotation):
    def handle(order):
        return order

    handle.__annotations__["return"] = annotation
    guarded = Once(MemoryStore())(key="order")(handle)
    assert guarded((1, 2)) == guarded((1, 2)) == (1, 2)


@each("annotation", [dict[str, object], dict[str, list[object]]])
def test_parts_that_may_be_anything_replay_as_what_they_were(annotation):
    codec = Codec(annotation)
    for value in ({"a": [1, (2, 3), {4}]}, {"b": [dt.date(2026, 11, 21)]}):
        assert same(codec.decode(codec.encode(value)), value)


# --- exceptions -----------------------------------------------------------------------------------------------------------


class Declined(Exception):
    def __init__(self, order, *, code):
        super().__init__(f"order {order} declined")
        self.code = code


class DeclinedForGood(Declined):
    pass


class Awkward(Exception):
    def __new__(cls, *, needed):
        return super().__new__(cls)

    def __init__(self, *, needed):
        super().__init__(needed)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@each(
    "error",
    [
        ValueError("a", 1),
        Declined(7, code=51),
        DeclinedForGood(7, code=1),
        KeyError(("a", 1)),
        ValueError("\udcff"),
        FileNotFoundError(2, "gone", "file"),
        OSError("x"),
        StopIteration(3),
    ],
)
def test_exception_comes_back_with_its_type_text_arguments_and_attributes(error):
    back = decode_exception(encode_exception(error), [Exception])
    assert type(back) is type(error)
    assert (back.args, str(back), back.__dict__) == (error.args, str(error), error.__dict__)
    assert getattr(back, "filename", None) == getattr(error, "filename", None)


@each(
    "error",
    [
        Awkward(needed=1),
        Mute(),
        ValueError(object()),
        ValueError(Hostile()),
        ExceptionGroup("x", [ValueError()]),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
)
def test_an_exception_that_would_not_come_back_is_refused(error):
    with pytest.raises(NotReplayable):
        encode_exception(error)


def test_an_exception_is_only_raised_again_if_it_is_one_of_the_final_ones():
    text = encode_exception(ValueError(1))
    with pytest.raises(NotReplayable, match="not among"):
        decode_exception(text, [KeyError])


# --- through a guard ---------------------------------------------------------------------------------------------------


@each("result", [object(), Hostile(), "x" * 300_000, "ü" * 140_000])
def test_a_result_that_cannot_be_stored_completes_the_key_all_the_same(result):
    runs = []

    def handle():
        runs.append(1)
        return result

    once = Once(MemoryStore())
    with pytest.warns(ResultWarning):
        assert once.run("k", handle) is result
    with pytest.raises(ResultUnavailable) as refused:
        once.run("k", handle)
    assert runs == [1]
    assert "will not run again" in str(refused.value)
    assert refused.value.reason


def test_a_result_of_exactly_the_limit_is_stored_and_one_byte_more_is_not():
    once = Once(MemoryStore(), max_result=10)
    assert once.run("fits", lambda_named := str, "12345678") == once.run("fits", lambda_named) == "12345678"
    with pytest.warns(ResultWarning, match="max_result=10"):
        once.run("more", str, "123456789")


def test_a_warning_that_is_an_error_does_not_make_the_effect_run_again():
    import warnings

    store = MemoryStore()
    once = Once(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResultWarning):
            once.run("k", object)
    assert [record.status for record in store.records.values()] == ["COMPLETED"]


# --- scripts ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import enum, sys
from dataclasses import dataclass
from onceward import Once

once = Once("sqlite:///ledger.db", name="n", final=(ValueError,))

class Colour(enum.Enum):
    RED = 1

class Declined(ValueError):
    pass

@dataclass
class Receipt:
    order: int
    colour: Colour

def charge(order):
    if order == 2:
        raise Declined("no")
    return [Receipt(order, Colour.RED)]

def outcome(order):
    try:
        [receipt] = once.run(order, charge, order)
        return type(receipt) is Receipt and receipt == Receipt(order, Colour.RED)
    except ValueError as error:
        return type(error) is Declined

if __name__ == "__main__":
    print(outcome(1), outcome(2), once.run("fingerprint", repr, 1))
"""


def run_program(folder, *arguments, program=None):
    source = os.path.dirname(os.path.dirname(sys.modules["onceward"].__file__))
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        input=program,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[:2]


IMPORTED = "import {0} as program; print(program.outcome(1), program.outcome(2))"
SCRIPTS = [(["worker.py"], "worker"), (["-m", "worker"], "worker"), (["-m", "shop.worker"], "shop.worker")]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "module"), SCRIPTS)
def test_a_class_of_a_script_replays_in_script_and_where_it_is_imported(tmp_path, arguments, module):
    (tmp_path / "shop").mkdir()
    for path in ("worker.py", "shop/worker.py", "shop/__init__.py"):
        (tmp_path / path).write_text(PROGRAM if "worker" in path else "")
    for _ in range(2):
        assert run_program(tmp_path, *arguments) == ["True", "True"]
    assert run_program(tmp_path, "-c", IMPORTED.format(module)) == ["True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "module"), SCRIPTS)
def test_a_class_of_a_module_replays_where_it_runs_as_a_script(tmp_path, arguments, module):
    (tmp_path / "shop").mkdir()
    for path in ("worker.py", "shop/worker.py", "shop/__init__.py"):
        (tmp_path / path).write_text(PROGRAM if "worker" in path else "")
    assert run_program(tmp_path, "-c", IMPORTED.format(module)) == ["True", "True"]
    assert run_program(tmp_path, *arguments) == ["True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-worker.py", "json.py", "__main__.py"])
def test_a_class_of_script_that_cannot_be_imported_replays_in_that_script(tmp_path, name):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / name).write_text("import sys; sys.path.pop(0)\n" + PROGRAM)
    for _ in range(2):
        assert run_program(tmp_path, f"scripts/{name}") == ["True", "True"]


@pytest.mark.slow
def test_a_record_of_a_script_by_earlier_version_replays_in_that_script(tmp_path):
    (tmp_path / "worker.py").write_text(PROGRAM)
    assert run_program(tmp_path, "worker.py") == ["True", "True"]
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        changed = connection.execute("UPDATE onceward SET result = replace(result, 'worker:', '__main__:')").rowcount
    connection.close()
    assert changed >= 2
    assert run_program(tmp_path, "worker.py") == ["True", "True"]


@pytest.mark.slow
def test_a_script_that_imports_itself_tells_its_two_classes_apart(tmp_path):
    (tmp_path / "worker.py").write_text(
        PROGRAM.replace(
            "print(",
            "import worker\n    print(outcome(1), once.run(3, worker.charge, 3) == [worker.Receipt(3, worker.Colour.RED)], end=' ')\n    print(",
        )
    )
    for _ in range(2):
        assert run_program(tmp_path, "worker.py") == ["True", "True"]


INTERRUPTED = """
import sys

from onceward import Once

class Interrupts:
    struck = False

    def find_spec(self, name, *_):
        if name == "datetime" and not self.struck:
            self.struck = True
            raise KeyboardInterrupt

def handler():
    import uuid
    return uuid.UUID(int=1)

sys.meta_path.insert(0, Interrupts())
try:
    Once("memory:", name="n").run("k", handler)
except KeyboardInterrupt:
    print(Once("memory:", name="n").run("k", handler))
"""


@pytest.mark.slow
def test_an_interrupt_as_msgspec_is_loaded_reaches_the_caller_and_breaks_nothing():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{uuid.UUID(int=1)}\n", "")
