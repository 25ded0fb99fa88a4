"""The way of a key from the decorator to the store's request is a straight one: down, with few returns."""

import sys

from onceward import Once
from onceward.stores.memory import MemoryStore


def holds(value, depth=3):
    """Return whether a value is the key, or is made of it."""
    if type(value) is str:
        return value in {"key-1", "n:key-1"}
    if depth == 0:
        return False
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, tuple | list):
        names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())]
        value = [getattr(value, name, None) for name in names]
    return any(holds(part, depth - 1) for part in value)


def test_a_key_goes_back_up_at_most_five_times_on_its_way_to_the_request():
    once = Once(MemoryStore())
    charge = once(key="order.id", name="n")(lambda order: 1)
    charge({"id": "warm"})
    climbs, on = [], True

    def profile(frame, event, value):
        nonlocal on
        where = frame.f_code.co_filename.rpartition("onceward/")[2] + ":" + frame.f_code.co_name
        if event == "call" and where.endswith(":exchange"):
            on = False  # here the request leaves
        if on and event == "return" and "onceward" in frame.f_code.co_filename and holds(value):
            climbs.append(where)

    sys.setprofile(profile)
    try:
        charge({"id": "key-1"})
    finally:
        sys.setprofile(None)
    assert not on
    assert "keys/signatures.py:plain" in climbs
    assert len(climbs) <= 5, climbs
