"""Keys and fingerprints read from the arguments of a call: what is missing is an error before anything runs."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from onceward import Claim, KeyMissing, Mismatch, Once, current
from onceward.stores.memory import MemoryStore
from tables import each

if TYPE_CHECKING:
    from decimal import Context

    from nowhere import Nothing


@pytest.fixture
def once():
    return Once(MemoryStore())


ORDER = {"id": 7, "shop": {"id": "a"}, "lines": [{"sku": "x"}], "note": None, "empty": "", "none": []}


def handler(order: dict, region: str = "eu") -> int:
    return 1


def key_of(once, key, *args, function=handler, **kwargs):
    return once(key=key, name="n")(function).key_of(*args, **kwargs)


@each(
    ("key", "expected"),
    [
        ("order.id", "n:7"),
        ("order.shop.id", "n:a"),
        ("order.lines[0].sku", "n:x"),
        ("[order.shop.id, order.id]", "n:(a,7)"),
        ("{shop: order.shop.id, id: order.id}", "n:{id:7,shop:a}"),
        ("join('-', [region, to_string(order.id)])", "n:eu-7"),
        ("not_null(order.note, order.id)", "n:7"),
        ("order.note || order.shop.id", "n:a"),
        ("region", "n:eu"),
        (lambda order: order["id"], "n:7"),
        (lambda order, region: (region, order["id"]), "n:(eu,7)"),
        (lambda region: region, "n:eu"),
        (lambda event: event["id"], "n:7"),
        (operator.itemgetter("id"), "n:7"),
        (functools.partial(lambda field, order: order[field], "id"), "n:7"),
    ],
)
def test_a_key_is_a_jmespath_or_a_callable_over_the_arguments(once, key, expected):
    assert key_of(once, key, ORDER) == expected
    assert key_of(once, key, order=ORDER) == expected
    assert key_of(once, key, ORDER, region="eu") == expected


@each(
    "key",
    [
        "order.missing",
        "order.note",
        "order.empty",
        "order.none",
        "order.shop.missing.deeper",
        "order.lines[1].sku",
        "[order.id, order.missing]",
        "{a: order.id, b: order.missing}",
        "[order.id, [order.missing]]",
        "to_string(order.missing)",
        "to_string([order.id, order.missing])",
        "to_string({a: order.missing})",
        "to_string([[order.missing]])",
        "join('-', [order.shop.id, order.missing])",
        "length(order.missing)",
        "not_null(order.note, order.missing)",
        lambda order: order["missing"],
        lambda order: order["lines"][5],
        lambda order: order.id,
        lambda order: None,
        lambda order: (order["id"], ""),
        operator.itemgetter("missing"),
        operator.attrgetter("missing"),
    ],
)
def test_a_missing_part_is_key_missing_and_nothing_runs(once, key):
    runs = []

    @once(key=key)
    def handle(order: dict, region: str = "eu") -> None:
        runs.append(order)

    with pytest.raises(KeyMissing):
        handle(ORDER)
    assert runs == []
    assert once.store.records == {}


@each(
    "key", ["order[].id", "order.lines[*].sku", "order.*", "order.lines[?sku=='x']", "[order.lines[*].sku, order.id]"]
)
def test_a_projection_is_refused_when_decorated(once, key):
    with pytest.raises(ValueError, match="projection"):
        once(key=key)(handler)


@each("key", ["'constant'", "`1`"])
def test_an_expression_that_never_changes_is_refused_when_decorated(once, key):
    with pytest.raises(ValueError, match="the same for every input"):
        once(key=key)(handler)


@each("key", ["order..id", "", "order[", "to_string(", "\ud800"])
def test_an_expression_that_is_none_is_refused_when_decorated(once, key):
    with pytest.raises(ValueError, match="key="):
        once(key=key)(handler)


@each("key", [7, None, b"order", ("order", "id")])
def test_a_key_that_is_neither_expression_nor_callable_is_refused(once, key):
    with pytest.raises(TypeError, match="key="):
        once(key=key)(handler)


def test_callable_that_asks_for_other_arguments_is_refused_when_decorated(once):
    with pytest.raises(ValueError, match="order, region"):
        once(key=lambda customer, country: customer)(handler)


@each("order", [None, "", b"\xff\xfe", 7, [], object(), "x" * 1_000_000, {"id": {}}, {"\ud800": 1}])
def test_input_that_is_not_what_was_expected_is_key_missing(once, order):
    with pytest.raises(KeyMissing):
        key_of(once, "order.id", order)


def test_an_input_nested_without_end_is_refused(once):
    loop: dict[str, Any] = {}
    loop["id"] = loop
    with pytest.raises((KeyMissing, TypeError)):
        key_of(once, "order.id", loop)


def test_arguments_that_do_not_fit_are_a_type_error_before_anything_runs(once):
    guarded = once(key="order.id")(handler)
    for call in (guarded, lambda: guarded(1, 2, 3), lambda: guarded(ORDER, nothing=1)):
        with pytest.raises(TypeError):
            call()
    assert once.store.records == {}


def test_defaults_and_variable_arguments_take_part(once):
    def variable(*args: int, **event: object) -> None: ...

    assert key_of(once, "event.id", function=variable, id=5) == "n:5"
    assert key_of(once, "args[0]", 1, 2, function=variable) == "n:1"
    assert key_of(once, "region", ORDER) == "n:eu"


# --- fingerprints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fingerprint",
    [
        "order.amount",
        "[order.amount, order.missing]",
        True,
        lambda order: order["amount"],
        "order.lines[*].sku || order.amount",
    ],
)
def test_another_input_under_the_same_key_is_a_mismatch(once, fingerprint):
    runs = []

    @once(key="order.id", fingerprint=fingerprint)
    def handle(order: dict) -> int:
        runs.append(order)
        return order["amount"]

    assert handle({"id": 1, "amount": 5}) == handle({"amount": 5, "id": 1}) == 5
    with pytest.raises(Mismatch) as refused:
        handle({"id": 1, "amount": 6})
    assert refused.value.key.endswith(":1")
    assert len(runs) == 1


def test_fingerprint_true_leaves_self_out(once):
    class Service:
        @once(key="order.id", fingerprint=True)
        def handle(self, order):
            return order["id"]

    assert Service().handle({"id": 1}) == Service().handle({"id": 1}) == 1


def test_a_fingerprint_that_cannot_be_taken_is_an_error_beforehand(once):
    guarded = once(key="order.id", fingerprint=True)(handler)
    with pytest.raises(TypeError, match="fingerprint"):
        guarded({"id": 1, "file": object()})
    assert once.store.records == {}


class Money(NamedTuple):
    amount: int


@dataclass
class Purchase:
    total: Money
    lines: tuple[Money, ...] = ()


class Opaque:
    amount = 1


@each(
    ("fingerprint", "order"),
    [
        ("order.amount", Money(1)),
        ("order.total.amount", Purchase(Money(1))),
        ("order.total.amount", {"total": Money(1)}),
        ("order[0].total", [Purchase(Money(1))]),
        ("order.amount", Opaque()),
    ],
)
def test_a_fingerprint_of_a_name_that_no_path_can_read_is_an_error_beforehand(once, fingerprint, order):
    """Else it would be null for every input."""
    guarded = once(key=lambda key: key, fingerprint=fingerprint)(of_key)
    with pytest.raises(KeyMissing, match="cannot read"):
        guarded("k", order)
    assert once.store.records == {}


@pytest.mark.parametrize(
    "fingerprint",
    ["order.total[0]", "order.lines[*][0]", "order.lines[?[0] > `0`]", "order.lines[] | [0]", "order.lines[:1]"],
)
def test_a_fingerprint_sees_tuples_as_lists(once, fingerprint):
    guarded = once(key=lambda key: key, fingerprint=fingerprint)(of_key)
    guarded("k", Purchase(Money(1), (Money(1),)))
    guarded("k", Purchase(Money(1), (Money(1),)))
    with pytest.raises(Mismatch):
        guarded("k", Purchase(Money(2), (Money(2),)))


def of_key(key: str, order: object) -> int:
    return 1


def test_mutating_the_arguments_in_the_handler_changes_nothing(once):
    @once(key="order.id", fingerprint=True)
    def handle(order: dict) -> int:
        order["id"] = 99
        order["more"] = []
        return 1

    assert handle({"id": 1}) == 1
    assert handle({"id": 1}) == 1
    assert [key.rpartition(":")[2] for key in once.store.records] == ["1"]


# --- signatures and annotations -----------------------------------------------------------------------------------------


def test_annotations_for_type_checkers_only_do_not_matter_in_parameters(once):
    @once(key="order.id")
    def handle(order: dict, context: Context | None = None, other: Nothing = None, claim: Claim = None) -> tuple:
        return (claim.attempt, current() is claim)

    assert handle({"id": 1}) == handle({"id": 1}) == (1, True)


def test_a_result_annotated_for_type_checkers_only_is_refused_beforehand(once):
    runs = []

    @once(key="order.id")
    def handle(order: dict) -> Nothing:
        runs.append(order)

    with pytest.raises(TypeError, match="Nothing"):
        handle({"id": 1})
    assert runs == []
    assert once.store.records == {}


@pytest.mark.parametrize("position", ["first", "middle", "last", "keyword", "positional-only", "optional", "with self"])
def test_the_claim_is_handed_to_the_parameter_annotated_with_it(once, position):
    def first(claim: Claim, order: dict, region: str = "eu"): ...
    def middle(order: dict, claim: Claim, region: str = "eu"): ...
    def last(order: dict, region: str = "eu", claim: Claim = None): ...
    def keyword(order: dict, region: str = "eu", *, mine: Claim): ...
    def positional_only(claim: Claim, order: dict, /, region: str = "eu"): ...
    def optional(order: dict, region: str = "eu", claim: Claim | None = None): ...

    seen = []

    def make(form):
        source = "claim" if "mine" not in form.__annotations__ else "mine"
        space = {"seen": seen, "Claim": Claim, "__name__": __name__}
        import inspect

        exec(f"def handle{inspect.signature(form)}:\n    seen.append(({source}, order, region))\n", space)
        return once(key="order.id")(space["handle"])

    if position == "with self":

        class Service:
            @once(key="order.id")
            def handle(self, claim: Claim, order: dict, region: str = "eu"):
                seen.append((claim, order, region))

        handle = Service().handle
    else:
        handle = make({"positional-only": positional_only}.get(position) or locals()[position])
    for number, call in enumerate(
        (
            handle,
            lambda o: handle(o, "us"),
            lambda o: handle(order=o) if position != "positional-only" else handle(o),
        )
    ):
        call({"id": number})
        claim, order, _ = seen[-1]
        assert isinstance(claim, Claim)
        assert order == {"id": number}
    assert [region for *_, region in seen] == ["eu", "us", "eu"]


def test_a_generator_is_refused(once):
    def numbers(order):
        yield 1

    async def numbers_async(order):
        yield 1

    class Callable:
        def __call__(self, order):
            yield 1

    for function in (numbers, numbers_async, functools.partial(numbers), Callable()):
        with pytest.raises(TypeError, match="generator"):
            once(key="order")(function)
        with pytest.raises(TypeError, match="generator"):
            once.run("k", function, 1)
