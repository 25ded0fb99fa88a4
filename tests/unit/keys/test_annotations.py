"""The type that arrives is part of the key. A call whose argument is not of the annotated type says so, once."""

import warnings
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from uuid import UUID

import pytest

from onceward import Once
from tables import each

TEXT = "8e03978e-40d5-43e8-bc93-6894a57f9324"


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    BIG = "big"


def handler(annotation, key="value"):
    def handle(value): ...

    handle.__annotations__["value"] = annotation
    return Once("memory:")(key=key, name="n")(handle)


@each(
    ("annotation", "given"),
    [
        (UUID | None, TEXT),
        ("UUID", TEXT),
        (date, "2026-03-01"),
        (Decimal, "1.50"),
        (Colour, "red"),
        (int, "1"),
        (int, True),
        (str, 1),
        (float, 1),
    ],
)
@each("key", ["value", "{a: 'a', b: [value]}.b"])
def test_an_argument_of_another_type_than_annotated_is_warned_of_once(annotation, given, key):
    handle = handler(annotation, key)
    with pytest.warns(UserWarning, match="value is annotated with another type") as told:
        handle(given)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle(given)


@each(
    ("annotation", "given"),
    [(UUID, UUID(TEXT)), (UUID | str, TEXT), (Size, "big"), (str, Size.BIG), (int, 1), (object, TEXT), ("Unknown", 1)],
)
def test_an_argument_that_makes_the_annotated_types_key_is_not_warned_of(annotation, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handler(annotation)(given)
