"""The pages of ledgers, of sources, of web faces, of the service and of agents begin with the same five sections."""

from printed.pages import PAGES, blocks, headings
from tables import each

SECTIONS = ["What it promises here", "Ten lines that work", "Options", "What can go wrong", "How to see it"]
LEDGERS = ["reference/sqlite", "reference/postgres", "reference/mysql", "reference/dynamodb", "reference/redis"]
SOURCES = ["lambda", "sqs", "brokers", "faststream", "celery", "task-queues"]
WEB = ["reference/http", "reference/proxy", "how-to/webhooks", "how-to/django"]
OTHERS = ["reference/service", "how-to/agents"]


@each("name", [*LEDGERS, *(f"reference/{one}" for one in SOURCES), *WEB, *OTHERS])
def test_a_page_begins_with_the_sections_of_the_template(name):
    page = f"docs/{name}.md"
    text = PAGES[page].read_text(encoding="utf-8")
    assert [title for _, level, title in headings(text) if level == 2][: len(SECTIONS)] == SECTIONS
    assert blocks(page, "Ten lines that work"), "show what works"
