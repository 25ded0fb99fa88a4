"""Keys and fingerprints read from the arguments of a call: what is missing is an error before anything runs."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from onceward import Claim, KeyMissing, Mismatch, current
from tables import each

if TYPE_CHECKING:
    from decimal import Context

    from nowhere import Nothing


ORDER = {"id": 7, "shop": {"id": "a"}, "lines": [{"sku": "x"}], "note": None, "empty": "", "none": []}


def handler(order: dict, region: str = "eu") -> int:
    return 1


def key_of(once, key, *args, function=handler, **kwargs):
    return once(key=key, name="n")(function).key_of(*args, **kwargs)


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
    "key",
    [
        "order.missing",
        "order.note",
        "order.empty",
        "order.none",
        "order.lines[1].sku",
        "[order.id, [order.missing]]",
        "{a: order.id, b: order.missing}",
        "to_string([order.id, order.missing])",
        "to_string({a: order.missing})",
        "join('-', [order.shop.id, order.missing])",
        "length(order.missing)",
        "not_null(order.note, order.missing)",
        lambda order: order["lines"][5],
        lambda order: order.id,
        lambda order: (order["id"], ""),
        operator.itemgetter("missing"),
    ],
)
def test_a_missing_part_is_key_missing_and_nothing_runs(once, key):
    def handle(order: dict, region: str = "eu") -> None:
        raise AssertionError("it ran")

    with pytest.raises(KeyMissing):
        once(key=key, name="n")(handle)(ORDER)
    assert once.store.records == {}


@each(
    ("key", "names"),
    [
        ("order.missing", "'order.missing' found nothing"),
        ("[order.shop.id, order.missing]", "order.missing"),
        ("[order.shop.id, order.lines[5]]", "part 2"),
        (lambda order: order["missing"], "missing"),
    ],
)
def test_the_error_of_a_missing_part_names_it_and_the_handler(once, key, names):
    with pytest.raises(KeyMissing) as missing:
        once(key=key)(handler)(ORDER)
    assert names in str(missing.value)
    assert "handler" in str(missing.value)


@each(
    ("keys", "error", "says"),
    [
        (
            ["order[].id", "order.*", "order.lines[?sku=='x']", "[order.lines[*].sku, order.id]"],
            ValueError,
            "projection",
        ),
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


@each(
    ("fingerprint", "order"),
    [
        ("order.amount", Money(1)),
        ("order.total.amount", Purchase(Money(1))),
    ],
)
def test_a_fingerprint_of_a_name_that_no_path_can_read_is_an_error_beforehand(once, fingerprint, order):
    """Else it would be null for every input."""
    guarded = once(key=lambda key: key, fingerprint=fingerprint)(of_key)
    with pytest.raises(KeyMissing, match="cannot read"):
        guarded("k", order)
    assert once.store.records == {}


def test_a_fingerprint_sees_tuples_as_lists(once):
    for path in ("order.total[0]", "order.lines[*][0]", "order.lines[:1]"):
        guarded = once(key=lambda key: key, fingerprint=path, name="n")(of_key)
        guarded(path, Purchase(Money(1), (Money(1),)))
        with pytest.raises(Mismatch):
            guarded(path, Purchase(Money(2), (Money(2),)))


def of_key(key: str, order: object) -> int:
    return 1


def test_annotations_for_type_checkers_only_do_not_matter_in_parameters(once):
    @once(key="order.id")
    def handle(order: dict, context: Context | None = None, other: Nothing = None, claim: Claim = None) -> tuple:
        return (claim.attempt, current() is claim)

    assert handle({"id": 1}) == handle({"id": 1}) == (1, True)


def test_a_result_annotated_for_type_checkers_only_is_refused_beforehand(once):
    @once(key="order.id")
    def handle(order: dict) -> Nothing:
        pytest.fail("it ran")

    with pytest.raises(TypeError, match="Nothing"):
        handle({"id": 1})
    assert once.store.records == {}


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
