"""The guards of keys: made once for a namespace, because a block or a transaction asks for one each time."""

from typing import Any

import pytest

from onceward import Once
from onceward.claim import factory
from onceward.claim.guard import Guard


def guard_of(once: Once, name: Any = "orders", **options: Any) -> Guard:
    return once.guards.for_keys(name, options, no_skip="it is a test")  # type: ignore[arg-type]  # options of any kind


def test_blocks_of_other_namespaces_options_or_defaults_have_their_own() -> None:
    once = Once("memory:", lease=60)
    kept = guard_of(once)
    others = [guard_of(once, None), guard_of(once, lease=30), guard_of(once.using(lease=10))]
    assert len({id(guard) for guard in (kept, guard_of(once), *others)}) == 4
    assert [guard.policy.lease for guard in others] == [60, 30, 10]
    silent = once.guards.for_keys("orders", {}, no_skip="", heartbeat=False)
    assert (silent.policy.heartbeat, guard_of(once).policy.heartbeat) == (0, None)
    remembers = once.using(cache=10)
    assert guard_of(remembers) is not guard_of(remembers)


def test_names_made_from_data_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_NAMES", 3)
    once = Once("memory:")
    for number in range(10):
        guard_of(once, f"customer-{number}")
    assert len(once.guards._keyed) == 3
