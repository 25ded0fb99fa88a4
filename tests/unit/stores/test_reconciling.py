"""What a ledger and its downstream do not agree on, also as the pages print it."""

import re
import subprocess
import sys
import uuid

import pytest

from onceward.cli.reconcile import effects_of
from onceward.stores.reconciling import Naming, mismatches
from printed.pages import section
from tables import each


def complete(once, *keys):
    for key in keys:
        once.acquire(key, name="n").complete(None)


def found(once, effects, name="n", **options):
    return sorted(
        (one.what, one.key, one.times, one.status)
        for one in mismatches(once.ledger, effects, Naming(name), **{"settle": 0.0, **options})
    )


def test_what_agrees_is_not_told(once):
    complete(once, "a", "b", 3, ("c", 4), uuid.UUID(int=5), "with space", "x" * 500, 42, "43")
    once.acquire("running", name="n")
    effects = ["a", "b", 3, ("c", 4), uuid.UUID(int=5), "with space", "x" * 500, "42", 43, "running"]
    assert found(once, effects) == []


def test_each_difference_is_told(once):
    complete(once, "ok", "never made", "twice")
    once.acquire("parked", name="n").park("no")
    effects = ["ok", "nobody", "twice", "twice", "parked"]
    assert found(once, effects) == [
        ("double", "n:twice", 2, "COMPLETED"),
        ("effect without a record", "n:nobody", 1, None),
        ("effect without a record", "n:parked", 1, "PARKED"),
        ("record without an effect", 'n:"never made"', 0, "COMPLETED"),
    ]


def test_a_large_result_of_a_step_is_no_key_of_the_downstream(once):
    claim = once.acquire("a", name="n")
    claim.step("large", lambda: "x" * 30_000)
    claim.complete(None)
    complete(once, "step-a")
    assert len(list(once.ledger.records())) == 3
    assert found(once, ["a"]) == [("record without an effect", "n:step-a", 0, "COMPLETED")]


def test_records_of_onceward_itself_and_of_exceptions_are_no_missing_effects(once):
    complete(once, "a")
    once.acquire("n:a:1", name="onceward.audit").complete("cleared")
    with pytest.raises(KeyError):
        once.using(name="n", final=(KeyError,)).run("b", {}.__getitem__, "x")
    assert found(once, ["n:a"], name=None) == []


def test_derived_keys_are_compared(once):
    keys = []
    for number in range(3):
        claim = once.acquire(number, name="n")
        keys.append(claim.key("charge"))
        claim.complete(None)
    told = mismatches(once.ledger, [*keys[:2], keys[0], "another"], Naming("n", "charge"), settle=0.0)
    assert sorted((one.what, one.key) for one in told) == [
        ("double", keys[0]),
        ("effect without a record", "another"),
        ("record without an effect", "n:2"),
    ]


def test_records_that_are_too_old_or_too_new_are_not_missed(once, clock):
    complete(once, "old")
    clock.advance(1000.0)
    complete(once, "new")
    assert found(once, ["old"], newer_than=500.0) == [("record without an effect", "n:new", 0, "COMPLETED")]
    assert found(once, ["old"], newer_than=500.0, settle=300.0) == []


def test_a_csv_file_is_read(tmp_path):
    path = tmp_path / "effects.csv"
    path.write_text("\ufeffkey,amount\na,1\n\nb,2\n", encoding="utf-8")
    assert list(effects_of(str(path))) == ["a", "b"]
    path.write_text("order,amount\na,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column 'key', only order, amount"):
        list(effects_of(str(path)))


@pytest.mark.slow
@each(
    ("page", "title"),
    [("how-to/runbook.md", "Compare the ledger with the downstream"), ("reference/records.md", "The last attempts")],
)
def test_the_page_prints_what_it_says(page, title, tmp_path):
    text = section(f"docs/{page}", title)
    found = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", text, re.DOTALL)
    assert found
    for number, (code, printed) in enumerate(found):
        script = tmp_path / f"block{number}.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.returncode) == (printed, 0), done.stderr
