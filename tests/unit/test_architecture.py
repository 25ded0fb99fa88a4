"""docs/explanation/architecture.md is true: its rooms are there, its floors are those of the linter, and its call is a real one."""

import re
import sys
import tomllib
from pathlib import Path

import onceward
from onceward import Once
from places import DOCS, ROOT

sys.path.insert(0, str(DOCS))
from generated.call import DUPLICATE, FIRST

SOURCE = Path(onceward.__file__).parent
TEXT = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def entered(call):
    """Return our functions that a call enters, in order, as the page has them."""
    found = []

    def hear(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            found.append((str(path.relative_to(SOURCE)), frame.f_code.co_qualname))

    sys.setprofile(hear)
    try:
        call()
    finally:
        sys.setprofile(None)
    return iter(found)


def test_a_call_enters_the_functions_that_the_page_has_in_that_order(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")

    @once(key="order.id", name="shop")
    def charge(order: dict) -> int:
        return 1

    charge({"id": "the first call opens the file"})
    for frames in (FIRST, DUPLICATE):
        found = entered(lambda: charge({"id": "another"}))
        assert [
            name for file, name, _ in frames if (file, name) not in found
        ] == []  # each is looked for behind the one before
    once.close()


def test_each_folder_is_named():
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")} - {Path()}
    assert [f"{folder}/" for folder in folders if f"`{folder}/`" not in TEXT] == []


def test_the_floors_are_those_of_the_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = [set(re.findall(r"\w+", layer)) for layer in next(c for c in contracts if c["type"] == "layers")["layers"]]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", TEXT, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows] == floors


def test_each_file_that_is_named_is_there():
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|toml|md))`", TEXT):
        if "etcd" in name:
            continue
        assert any((folder / name).exists() for folder in (SOURCE, ROOT)), name
