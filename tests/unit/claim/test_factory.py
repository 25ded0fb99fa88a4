"""The guards of keys: made once for a namespace, because a block or a transaction asks for one each time."""

from typing import Any

import pytest

from onceward import Once
from onceward.claim import factory
from onceward.claim.guard import Guard
from tables import each


def guard_of(once: Once, name: Any = "orders", **options: Any) -> Guard:
    return once.guards.for_keys(name, options, no_skip="it is a test")  # type: ignore[arg-type]  # options of any kind


def test_blocks_of_other_namespaces_options_or_defaults_have_their_own() -> None:
    once = Once("memory:", lease=60)
    kept = guard_of(once)
    others = [guard_of(once, None), guard_of(once, lease=30), guard_of(once.using(lease=10))]
    assert len({id(guard) for guard in (kept, *others)}) == 4
    assert [guard.policy.lease for guard in others] == [60, 30, 10]


def test_a_guard_without_heartbeats_is_not_that_with_them() -> None:
    guards = Once("memory:").guards
    made = [
        guards.for_keys("orders", {}, no_skip="", heartbeat=beats).policy.heartbeat for beats in (True, False, True)
    ]
    assert made == [None, 0, None]


def test_guards_that_remember_results_are_not_shared() -> None:
    once = Once("memory:", cache=10)
    assert guard_of(once) is not guard_of(once)


def test_names_made_from_data_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_NAMES", 3)
    once = Once("memory:")
    for number in range(10):
        guard_of(once, f"customer-{number}")
    assert len(once.guards._keyed) == 3


@each("name", [["orders"], 7, "two words"])
def test_a_wrong_name_is_refused_each_time(name: object) -> None:
    once = Once("memory:")
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="name="):
            guard_of(once, name)
