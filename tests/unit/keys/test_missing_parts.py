"""An error about a missing key names the handler and the part."""

import pytest

from onceward import KeyMissing, Once
from tables import each


def charge(order):
    raise AssertionError


@each(
    ("key", "named"),
    [
        ("order.id", "order.id"),
        ("[order.shop.name, order.id]", "order.id"),
        ("[order.id, order.shop.name]", "order.id"),
        ("[order.shop.name, order.items[0]]", "part 2"),
        ("{shop: order.shop.name, id: order.id}", "id"),
        (lambda order: order["id"], "id"),
    ],
)
def test_handler_and_part_are_named(key, named):
    guarded = Once("memory:")(key=key)(charge)
    with pytest.raises(KeyMissing) as missing:
        guarded({"shop": {"name": "a"}})
    assert "charge" in str(missing.value)
    assert named in str(missing.value)
