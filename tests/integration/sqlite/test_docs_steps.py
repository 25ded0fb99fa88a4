"""The code of docs/reference/steps.md runs as it is printed."""

import re
import sqlite3
from types import SimpleNamespace

import pytest

import onceward
from places import ROOT

BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "steps.md").read_text(encoding="utf-8"), re.DOTALL
)


class SmtpIsDown(Exception):
    pass


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page leaves to its reader."""
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect(tmp_path / "orders.db", isolation_level=None)
    connection.executescript("CREATE TABLE stock (item, left); INSERT INTO stock VALUES ('tea', 5)")
    made, down = [], [True]

    def send_mail(order):
        made.append("mail")
        if down:
            raise SmtpIsDown(down.pop())

    yield {
        "bank": SimpleNamespace(pay=lambda key, total: made.append("charge") or {"id": "ch_1", "total": total}),
        "warehouse": SimpleNamespace(find=lambda key: made.append("found") or "reserved"),
        "reserve": lambda order: made.append("reserve"),
        "send_mail": send_mail,
        "connection": connection,
        "made": made,
    }
    connection.close()


def test_the_page_runs_and_a_person_retries_its_parked_mail(names):
    for block in BLOCKS:
        exec(compile(block, "docs/reference/steps.md", "exec"), names)
    order, made, once = {"id": "o-42", "total": 12}, names["made"], names["once"]
    with pytest.raises(SmtpIsDown):
        names["place"](order)
    with pytest.raises(onceward.Parked, match="'mail'"):
        names["place"](order)
    once.ledger.retry("orders.place:o-42", "mail")
    assert names["place"](order) == "ch_1"
    assert made == ["charge", "reserve", "mail", "mail"]
    made.clear()
    assert names["ship"](order) == names["ship"](order) == "4 left"
    once.ledger.retry("orders.ship:o-42", "mail")
    assert names["ship"](order) == "4 left"
    assert made == ["mail", "mail"]
    once.close()
