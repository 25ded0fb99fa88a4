"""Keys and fingerprints read from the arguments of a call and from JSON: what is missing or odd is an error before anything runs."""

from __future__ import annotations

import functools
import gzip
import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Claim, KeyMissing, Mismatch, current
from onceward.keys.json_reading import NotJson, read_json
from tables import each

if TYPE_CHECKING:
    from decimal import Context

    from nowhere import Nothing


ORDER = {"id": 7, "shop": {"id": "a"}, "lines": [{"sku": "x"}], "note": None, "empty": "", "none": []}


def handler(order: dict, region: str = "eu") -> int:
    pytest.fail("it ran")


def key_of(once, key, *args, **kwargs):
    return once(key=key, name="n")(handler).key_of(*args, **kwargs)


@each(
    ("key", "expected"),
    [
        ("order.id", "n:7"),
        ("order.lines[0].sku", "n:x"),
        ("{shop: order.shop.id, id: order.id}", "n:{id:7,shop:a}"),
        ("join('-', [region, to_string(order.id)])", "n:eu-7"),
        ("not_null(order.note, order.id)", "n:7"),
        ("order.note || order.shop.id", "n:a"),
        (lambda order, region: (region, order["id"]), "n:(eu,7)"),
        (lambda region: region, "n:eu"),
        (lambda event: event["id"], "n:7"),
        (operator.itemgetter("id"), "n:7"),
        (functools.partial(lambda field, order: order[field], "id"), "n:7"),
    ],
)
def test_a_key_is_a_jmespath_or_a_callable_over_the_arguments(once, key, expected):
    assert (
        key_of(once, key, ORDER) == key_of(once, key, order=ORDER) == key_of(once, key, ORDER, region="eu") == expected
    )


@each(
    ("key", "names"),
    [
        ("order.missing", "'order.missing' found nothing"),
        ("order.note", "'order.note' found nothing"),
        ("order.empty", ""),
        ("order.none", ""),
        ("order.lines[1].sku", ""),
        ("[order.id, [order.missing]]", ""),
        ("[order.shop.id, order.missing]", "order.missing"),
        ("[order.shop.id, order.lines[5]]", "part 2"),
        ("{a: order.id, b: order.missing}", "order.missing"),
        ("to_string([order.id, order.missing])", "order.missing"),
        ("to_string({a: order.missing})", ""),
        ("join('-', [order.shop.id, order.missing])", ""),
        ("length(order.missing)", "length"),
        ("not_null(order.note, order.missing)", ""),
        (lambda order: order["lines"][5], ""),
        (lambda order: order.id, ""),
        (lambda order: (order["id"], ""), ""),
        (operator.itemgetter("missing"), "raised KeyError"),
    ],
)
def test_a_missing_part_is_key_missing_with_its_name_and_the_handlers_and_nothing_runs(once, key, names):
    with pytest.raises(KeyMissing) as missing:
        once(key=key)(handler)(ORDER)
    assert names in str(missing.value)
    assert "handler" in str(missing.value)
    assert once.store.records == {}


@each(
    ("keys", "error", "says"),
    [
        (["order[].id", "order.*", "order.lines[?sku=='x']", "[order.lines[*].n, order.id]"], ValueError, "projection"),
        (["'constant'", "`1`"], ValueError, "the same for every input"),
        (["order..id", "", "to_string("], ValueError, "key="),
        ([7, None, ("order", "id")], TypeError, "key="),
        ([lambda customer, country: customer], ValueError, "order, region"),
    ],
)
def test_what_can_be_no_key_is_refused_when_decorated(once, keys, error, says):
    for key in keys:
        with pytest.raises(error, match=says):
            once(key=key)(handler)


def test_input_that_is_not_what_was_expected_is_key_missing(once):
    loop: dict[str, Any] = {}
    loop["id"] = loop
    for order in (None, "", b"\xff\xfe", 7, object(), {"id": {}}, {"\ud800": 1}, loop):
        with pytest.raises((KeyMissing, TypeError)):
            key_of(once, "order.id", order)


@pytest.mark.parametrize(
    "fingerprint",
    ["[order.amount, order.missing]", True, lambda order: order["amount"], "order.lines[*].sku || order.amount"],
)
def test_another_input_under_the_same_key_is_a_mismatch(once, fingerprint):
    class Service:
        @once(key="order.id", fingerprint=fingerprint)
        def handle(self, order: dict) -> int:
            order["more"] = []  # what a handler does to its arguments changes nothing
            return order["amount"]

    assert Service().handle({"id": 1, "amount": 5}) == Service().handle({"amount": 5, "id": 1}) == 5
    with pytest.raises(Mismatch) as refused:
        Service().handle({"id": 1, "amount": 6})
    assert refused.value.key.endswith(":1")
    assert len(once.store.records) == 1


class Money(NamedTuple):
    amount: int


@dataclass
class Purchase:
    total: Money
    lines: tuple[Money, ...] = ()


@each(("fingerprint", "order"), [("order.amount", Money(1)), ("order.total.amount", Purchase(Money(1)))])
def test_a_fingerprint_of_a_name_that_no_path_can_read_is_an_error_beforehand(once, fingerprint, order):
    """Else it would be null for every input."""
    guarded = once(key=lambda key: key, fingerprint=fingerprint)(of_key)
    with pytest.raises(KeyMissing, match="cannot read"):
        guarded("k", order)
    assert once.store.records == {}


def test_a_field_that_a_fingerprint_does_not_find_is_null(once):
    guarded = once(key="order.id", fingerprint="order.note", name="n")(lambda order: order["id"])
    assert guarded({"id": 7}) == guarded({"id": 7, "note": None}) == 7
    with pytest.raises(Mismatch):
        guarded({"id": 7, "note": "a gift"})


class Card(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    number: str = pydantic.Field(default="1", exclude=True)
    holder: str = "Ada"
    _mask = pydantic.field_serializer("holder")(lambda holder: "***")

    @pydantic.computed_field
    def last(self) -> str:
        return self.number[-4:]


class Cards(pydantic.RootModel[list[Card]]):
    pass


class Paid(msgspec.Struct, omit_defaults=True, rename="camel"):
    order_id: int = 0
    by: object = None


class Tagged(msgspec.Struct, tag=True): ...


class OtherTag(msgspec.Struct, tag=True): ...


class Row(msgspec.Struct, array_like=True):
    number: int


@dataclass
class Holding:
    held: object
    kind: ClassVar[str] = "held"


@each(
    ("path", "ordinary", "other"),
    [
        ("order.holder", Card(holder="Ada"), Card(holder="Bob")),
        ("[order.number, order.extra]", Card(number="77", extra=[1]), Card(number="78", extra=[1])),
        ("order.last", Card(number="11111"), Card(number="11112")),
        ("order[0].holder", Cards([Card(holder="Ada")]), Cards([Card(holder="Bob")])),
        ("order.orderId", Paid(0), Paid(1)),
        ("order.by.held[0].holder", Paid(by=Holding([Card(holder="Ada")])), Paid(by=Holding([Card(holder="Bob")]))),
        ("[order.held, order.held.type]", Holding(Tagged()), Holding(OtherTag())),
        ("[order.held[0]]", Holding(Row(1)), Holding(Row(2))),
        ("order.schema", Card(schema=1), Card(schema=2)),
        ("order.held.by.number", Holding(Paid(by=Card(number="7"))), Holding(Paid(by=Card(number="8")))),
    ],
)
def test_a_path_reads_the_fields_of_models_and_not_what_their_json_shows(once, path, ordinary, other):
    keys = [key_of(once, path, order) for order in (ordinary, other)]
    assert keys[0] != keys[1]
    with pytest.raises(TypeError, match="cannot be made of set"):  # whose order another process does not know
        key_of(once, "order.held", Holding({"a", "b"}))


def test_a_fingerprint_sees_tuples_as_lists(once):
    for path in ("order.total[0]", "order.lines[*][0]", "order.lines[:1]"):
        guarded = once(key=lambda key: key, fingerprint=path, name="n")(of_key)
        guarded(path, Purchase(Money(1), (Money(1),)))
        with pytest.raises(Mismatch):
            guarded(path, Purchase(Money(2), (Money(2),)))


def of_key(key: str, order: object) -> int:
    return 1


def test_annotations_for_type_checkers_only_do_not_matter(once):
    @once(key="order.id")
    def unread(order: dict) -> Nothing:
        return {order["id"]}

    @once(key="order.id")
    def handle(order: dict, context: Context | None = None, other: Nothing = None, claim: Claim = None) -> tuple:
        return (claim.attempt, current() is claim)

    assert unread({"id": 1}) == unread({"id": 1}) == {1}
    assert handle({"id": 1}) == handle({"id": 1}) == (1, True)


def test_the_claim_is_handed_to_the_parameter_annotated_with_it(once):
    seen = []

    def middle(order: dict, claim: Claim, region: str = "eu"):
        seen.append((claim, order, region))

    def keyword(order: dict, region: str = "eu", *, mine: Claim):
        seen.append((mine, order, region))

    def positional_only(claim: Claim, order: dict, /, region: str = "eu"):
        seen.append((claim, order, region))

    class Service:
        @once(key="order.id")
        def handle(self, claim: Claim, order: dict, region: str = "eu"):
            seen.append((claim, order, region))

    for form in (middle, keyword, positional_only, Service().handle):
        handle = form if form.__name__ == "handle" else once(key="order.id")(form)
        seen.clear()
        handle({"id": 0})
        handle({"id": 1}, "us")
        handle({"id": 2}) if form is positional_only else handle(order={"id": 2})
        assert all(isinstance(claim, Claim) for claim, *_ in seen)
        assert [told for _, *told in seen] == [[{"id": 0}, "eu"], [{"id": 1}, "us"], [{"id": 2}, "eu"]]


def test_a_generator_is_refused(once):
    def numbers(order):
        yield 1

    async def numbers_async(order):
        yield 1

    for function in (numbers, numbers_async, functools.partial(numbers)):
        with pytest.raises(TypeError, match="generator"):
            once(key="order")(function)
        with pytest.raises(TypeError, match="generator"):
            once.run("k", function, 1)


FAULTS = [
    (b"\xef\xbb\xbf \n", "it is empty"),
    (b'{"a": NaN}', r"invalid character \(byte 6\)"),
    (b"[-Infinity]", r"invalid character \(byte 2\)"),
    (b"1e999", "Number out of range"),
    (b'["\\ud83d\\ude00", "\\ude00"]', r"invalid utf-16 surrogate pair \(byte 24\)"),
    (b'{"\xc3\xa9": "\\ud800\\ud800\\udc00"}', r"invalid utf-16 surrogate pair \(byte 20\)"),
    ('"\ud800"', ".* surrogates not allowed"),
    (b'{"a": "\xff"}', "it is not UTF-8"),
    (b'\xef\xbb\xbf{"a": 1, "a": 1}', "the name 'a' is there twice"),
    (b'{"a": 1, "\\u0061": "\\u003a"}', "the name 'a' is there twice"),
    (b'\xef\xbb\xbf{"a": 1,}', r"trailing comma in object \(byte 8\)"),
    (b'{"a": 1', "Input data was truncated"),
    (b"[" * 100_000, "it is nested too deep"),
    (gzip.compress(b"{}", mtime=0), "it is not UTF-8"),
    ("{}".encode("utf-16"), "it is not UTF-8"),
    ('{"a": 1}'.encode("utf-16-be"), r"invalid character \(byte 0\)"),
]


@each(("body", "why"), FAULTS)
def test_what_is_not_quite_json_is_refused_and_says_why(body, why):
    with pytest.raises(NotJson, match=f"^not JSON: {why}$"):
        read_json(body)


@each(
    "text",
    [
        '{"a": {"b": 1}, "c": {"b": 1}}',
        '"\\ud83d\\ude00 \\\\ud800"',
        '{"a": "NaN: {\\"a\\": 1, \\"a\\": 2}"}',
        '{"n": 99999999999999999999}',
    ],
)
def test_what_only_looks_odd_is_read(text):
    assert read_json("\ufeff" + text) == read_json(b"\xef\xbb\xbf" + text.encode()) == json.loads(text)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a:", "\\u0061"]), st.sampled_from(["1", '"\\u003a"', '":"']))))
def test_a_name_is_found_twice_where_json_finds_it_twice(pairs):
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
    names = [json.loads(f'"{name}"') for name, _ in pairs]
    if len(set(names)) == len(names):
        assert read_json(text) == json.loads(text)
    else:
        with pytest.raises(NotJson, match="is there twice"):
            read_json(text)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(body):
    try:
        value = read_json(body)
    except NotJson:
        return
    assert json.loads(body) == value
