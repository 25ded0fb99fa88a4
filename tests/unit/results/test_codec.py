"""A replay is equal to the first answer and of the same type, or is refused; it is never silently something else."""

import datetime as dt
import decimal
import enum
import json
import math
import uuid
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec
from tables import each

T = TypeVar("T")


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


class Sub(Money):
    pass


class Invoice(msgspec.Struct):
    number: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class Model(pydantic.BaseModel):
    x: int = pydantic.Field(alias="X")
    when: dt.datetime
    inner: Money


class Extra(pydantic.BaseModel, extra="allow"):
    x: int


class Page(pydantic.BaseModel, Generic[T]):
    class Line(pydantic.BaseModel):
        id: int

    lines: list[T]
    more: bool = False


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
    | st.sampled_from([Colour.RED, Size.BIG, Row(1, ()), Money(decimal.Decimal("1.10")), Invoice(1), Invoice(2, "x")])
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


OTHERS = [int, float, str, bytes, list[int], list[float], dict[str, str], tuple[int, ...], Money, Receipt, Item, Model]


@given(values, st.sampled_from([*OTHERS, set[str], int | None, dt.datetime, dict, list, Any]))
def test_a_value_of_another_type_than_annotated_replays_as_what_it_was(value, annotation):
    assert exact(replay(value, annotation)) == exact(value)


NOW = dt.datetime(2026, 11, 21, 8, 0, tzinfo=dt.UTC)
RECEIPT = Receipt(uuid.UUID(int=1), Money(decimal.Decimal("9.90")), NOW, (Row(1, ("a", "b")),))


@each(
    ("annotation", "value"),
    [
        (list[Receipt], [RECEIPT]),
        (dict[int, Money], {1: Money(decimal.Decimal(1))}),
        (Invoice, Invoice(1)),
        (Row, Row(1, ())),
        (Item, {"id": 1, "price": decimal.Decimal("1.0")}),
        (Literal["a", "b"], "b"),
        (int | str | None, None),
        (Numbers, Numbers([1, 2])),
        (Extra, Extra(x=1, y=(1, 2))),
        (Page[Page.Line], Page[Page.Line](lines=[Page.Line(id=1)])),
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
        (dict[str, float], {"a": 1}),
        (dict[str, str], {"a": Colour.RED}),
        (list[int], [Size.BIG]),
        (list[int], [True]),
        (list[bytes], [bytearray(b"x")]),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
        (list[list[int]], [(1, 2)]),
        (Money, Money(decimal.Decimal(1), Colour.RED)),
        (list[Money], [Sub(1)]),
    ],
)
def test_part_that_only_equals_its_annotated_type_is_not_changed_into_it(annotation, value):
    assert exact(replay(value, annotation)) == exact(value)
    assert repr(replay(value, annotation)) == repr(value)


ODD = [0.0, -0.0, math.nan, math.inf, -math.inf, "a\x00b", {"\udfff": ["\ud800"]}, {"\ud800"}, 2**63, -(10**4000)]
TIMES = [
    dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    dt.datetime(2026, 10, 25, 2, 30, fold=1),
    dt.time(2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
]


@each("value", [None, 0, False, "", [], {}, (), set(), b"", *ODD, *TIMES, decimal.Decimal("sNaN")])
def test_empty_and_odd_values_replay_as_they_are(value):
    assert exact(replay(value)) == exact(replay(value, dt.datetime)) == exact(value)
    Codec().encode(value).encode()


def test_what_contains_itself_or_is_nested_too_deeply_is_refused():
    loop, deep = [], []
    loop.append(loop)
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(NotReplayable):
            Codec().encode(value)


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __eq__ = __hash__ = __bool__ = __iter__ = __repr__


class Text(str):
    __slots__ = ()


def local():
    @dataclass
    class Local:
        x: int

    return Local(1)


@each("value", [Hostile(), Text("a"), iter([]), lambda: 1, ValueError(1), type, local(), [Hostile()]])
def test_what_would_not_come_back_is_refused(value):
    with pytest.raises(NotReplayable):
        Codec().encode(value)
