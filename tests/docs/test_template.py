"""The pages of ledgers, and of sources of messages and tasks, begin with the same five sections."""

import pytest

from places import ROOT
from printed.pages import blocks, headings

SECTIONS = ["What it promises here", "Ten lines that work", "Options", "What can go wrong", "How to see it"]
LEDGERS = ["sqlite", "postgres", "mysql", "dynamodb", "redis"]
SOURCES = ["lambda", "sqs", "brokers", "faststream", "celery", "task-queues"]


@pytest.mark.parametrize("name", LEDGERS + SOURCES)
def test_a_page_begins_with_the_sections_of_the_template(name):
    page = f"docs/reference/{name}.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [title for _, level, title in headings(text) if level == 2][: len(SECTIONS)] == SECTIONS
    assert blocks(page, "Ten lines that work"), "show what works"
