"""One input, one key; two inputs, two keys; no input, no call."""

import enum
import math
import uuid
from dataclasses import dataclass

import pydantic
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onceward import KeyMissing, Once
from onceward.keys.ledger_keys import LONGEST, derived_key, fingerprint_of, function_name, ledger_key
from onceward.stores.memory import MemoryStore
from tables import each

atoms = (
    st.text(min_size=1).filter(lambda s: s.strip())
    | st.integers()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.binary(min_size=1)
    | st.sampled_from(
        ["1", "1.0", "true", "null", "(a,b)", "a,b", '"a"', "uuid:x", "{a:b}", "1e5", "inf", "\ud800", "a:b"]
    )
)
keys = st.recursive(atoms, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=6)


def exact(key):
    """What makes two keys different: the types of their parts and their values."""
    if isinstance(key, tuple):
        return ("tuple", *map(exact, key))
    return (type(key).__name__, repr(key))


@given(keys, keys)
def test_different_keys_never_share_a_ledger_key(one, other):
    assume(exact(one) != exact(other))
    assert ledger_key("n", one) != ledger_key("n", other)


@given(keys)
def test_the_same_key_always_gives_same_ledger_key_and_it_can_be_stored(key):
    full = ledger_key("n", key)
    assert full == ledger_key("n", key)
    assert full.encode().decode() == full
    assert len(full) <= LONGEST + len("n:")
    assert not {"\x00", "\n"} & set(full)


def test_long_and_binary_keys_are_digests_and_no_text_is_taken_for_one():
    long, binary = (ledger_key("n", key) for key in ("x" * 201, b"\x00\xff"))
    assert (long.startswith("n:sha256:"), binary.startswith("n:bytes:")) == (True, True)
    assert ledger_key("n", "x" * 200) == "n:" + "x" * 200
    assert ledger_key("n", bytearray(b"x")) == ledger_key("n", b"x")
    for full in (long, binary):
        assert ledger_key("n", full.removeprefix("n:")) != full


@given(st.lists(keys, min_size=1, max_size=3), st.lists(keys, min_size=1, max_size=3))
def test_different_parts_derive_different_keys(one, other):
    assume([*map(exact, one)] != [*map(exact, other)])
    assert derived_key("n:k", one) != derived_key("n:k", other)


class Colour(enum.StrEnum):
    RED = "red"


class Access(enum.IntFlag):
    READ = 1


def test_a_member_that_is_a_value_is_its_own_key_in_every_form():
    once = Once(MemoryStore())
    for member, value in ((Colour.RED, "red"), (Access.READ, 1)):
        assert ledger_key("n", (member, "a")) == ledger_key("n", (value, "a"))
        assert derived_key("n:k", [member]) == derived_key("n:k", [value])
        for source in ("order.colour", lambda order: order["colour"]):
            handle = once(key=source, name="n")(lambda order: order)
            assert handle.key_of({"colour": member}) == handle.key_of({"colour": value}) == ledger_key("n", value)


def test_members_that_are_no_values_and_numbers_of_any_size_have_keys_of_their_own():
    one, other = (enum.Enum("Paint", "RED BLUE", module=module) for module in ("shop.orders", "shop.walls"))
    different = [one.RED, one.BLUE, other.RED, "red", 10**5000, 10**5000 + 1, *map(Access, (0, 1, 2))]
    assert len({ledger_key("n", key) for key in different}) == len(different)
    assert len({derived_key("n:k", [key]) for key in different}) == len(different)
    assert ledger_key("n", one.RED) == "n:enum:shop.orders.Paint.RED"


@each(
    "key",
    [None, "", "\t\n", b"", (), {}, ("a", None), ("a", ("b", "")), [[]], {"a": None}, math.nan, math.inf],
)
def test_a_missing_part_is_an_error(key):
    with pytest.raises(KeyMissing):
        ledger_key("n", key)


LOOP = []
LOOP.append(LOOP)


def test_what_is_no_key_is_refused_with_what_would_be():
    for key in (object(), {1, 2}, 1j, LOOP):
        with pytest.raises(TypeError, match="contains itself" if key is LOOP else "give str, int, UUID, bytes"):
            ledger_key("n", key)
    for value in (object(), LOOP):
        with pytest.raises(TypeError, match="no fingerprint"):
            fingerprint_of(value)


def test_a_name_that_could_be_mistaken_is_refused():
    for name in ("", "a b", "a:b", "a\n", "\x00", 7, b"n"):
        with pytest.raises(ValueError, match="name="):
            Once(MemoryStore(), name=name)


@dataclass
class Point:
    x: int
    y: int


@each(
    ("one", "other"),
    [
        ({"$a": 1, "b": 2}, {"b": 2, "$a": 1}),
        ({"x": {(1, 2): 3, (2, 1): 4}}, {"x": {(2, 1): 4, (1, 2): 3}}),
        ({"a", "b", "c"}, {"c", "b", "a"}),
        (Point(1, 2), Point(1, 2)),
    ],
)
def test_equal_inputs_have_equal_fingerprints(one, other):
    assert fingerprint_of(one) == fingerprint_of(other)


@each(("one", "other"), [(1, "1"), (1, True), (1, 1.0), ([1], (1,)), (None, "null"), ({"$tuple": [1]}, (1,))])
def test_different_inputs_have_different_fingerprints(one, other):
    assert fingerprint_of(one) != fingerprint_of(other)


def test_a_function_is_known_by_its_module_and_name_and_one_without_needs_a_name():
    once, spaces = Once(MemoryStore()), [{"__name__": "one"}, {"__name__": "two"}, {}]
    for number, space in enumerate(spaces):
        exec(f"def handle(): return {number}", space)
    assert [once.run("k", space["handle"]) for space in spaces[:2]] == [0, 1]
    assert once.run("k", str.upper, "a") == once.run("k", str.upper, "b") == "A"
    assert list(once.store.records) == ["one.handle:k", "two.handle:k", "builtins.str.upper:k"]
    for function in (lambda: 1, spaces[2]["handle"], [].append):
        with pytest.raises(ValueError, match="give name="):
            once.run("k", function)
    with pytest.raises(ValueError, match="lambda"):
        once(key="x")(lambda x: x)
    with pytest.raises(ValueError, match="lambda"):
        function_name(lambda: 1)
    assert Once(MemoryStore(), name="mine").run("k", lambda: 1) == 1


@each(
    ("key", "written"),
    [
        (True, "true"),
        (1, "1"),
        (1.0, "1.0"),
        ("1", '"1"'),
        ("order-42", "order-42"),
        ("a b", '"a b"'),
        (("a", 1), "(a,1)"),
        ({"b": 1, "a": 2}, "{a:2,b:1}"),
        (uuid.UUID(int=7), "uuid:00000000-0000-0000-0000-000000000007"),
        (b"x", "bytes:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"),
    ],
)
def test_keys_of_ledgers_that_exist_stay_what_they_are(key, written):
    assert ledger_key("n", key) == f"n:{written}"


class Model(pydantic.BaseModel):
    x: int
    y: int = 3


@each(
    ("value", "digest"),
    [
        ([Model(x=1), Model(x=1, y=3)], "93a52d5151e6aa49"),
        ({1: "a", "$b": (1, 2)}, "02643a962acd265d"),
        (Point(1, 2), "76aff1c531953388"),
        (Colour.RED, "29a6febbde531897"),
    ],
)
def test_fingerprints_of_ledgers_that_exist_stay_what_they_are(value, digest):
    assert fingerprint_of(value)[:16] == digest
