"""The examples of docs/how-to/completing.md and docs/explanation/chains.md run as they are printed."""

import re
from types import SimpleNamespace

import pytest

from places import DOCS


@pytest.mark.parametrize("page", ["how-to/completing", "explanation/chains"])
def test_the_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    made = []
    space = {
        "bank": SimpleNamespace(pay=lambda key, total: made.append(total) or {"id": f"ch_{total}"}),
        "send_mail": lambda order: made.append("mail"),
    }
    for block in blocks:
        exec(block, space)
    if page == "explanation/chains":
        assert space["place"]({"id": 7, "total": 1250}) == "ch_1250"
    else:
        assert capsys.readouterr().out == "Sweep(completed=0, failed=0, parked=0, taken=0, left=0)\n"
    assert made == [1250, "mail"]
    space["once"].close()
