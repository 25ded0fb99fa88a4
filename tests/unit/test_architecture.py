"""The docs tell the code as it is: each folder is a room, its files are there, its call is a real one, and its states are ours."""

import re
import sys
from pathlib import Path

import onceward
from onceward import Once
from onceward.core.protocol import RULES, SINGLE_USE
from places import DOCS, ROOT

sys.path.insert(0, str(DOCS))
from generated import states
from generated.call import DUPLICATE, FIRST
from generated.rooms import part
from transitions import TRANSITIONS

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


def test_the_page_of_states_has_every_transition_and_every_rule():
    page = states.part()
    for transition in TRANSITIONS:
        assert f"| {' | '.join(transition)} |" in page
    for rule in (*RULES, *SINGLE_USE):
        assert rule.verdict.value in page


def test_each_folder_is_a_room_with_a_docstring():
    rooms = dict(re.findall(r"^\| \d* \| `([\w/.]+)` \| (.*?) \|$", part(), re.MULTILINE))
    folders = {f"{path.parent.relative_to(SOURCE)}/" for path in SOURCE.rglob("*.py")} - {"./", "testing/"}
    assert [folder for folder in folders if not rooms.get(folder)] == []


def test_each_file_that_is_named_is_there():
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|toml|md))`", TEXT):
        if "etcd" in name:
            continue
        assert any((folder / name).exists() for folder in (SOURCE, ROOT)), name
