"""The pages' form: lists that are shown as lists, short sentences, the sections of the template, and where onceward comes from."""

import importlib
import inspect
import re
import runpy
import sys
import tomllib

import markdown

from places import DOCS, ROOT
from printed.pages import PAGES, blocks, headings

sys.path.insert(0, str(DOCS))
from generated import PAGES as GENERATED
from generated import PARTS, docstrings
from generated.python_api import PUBLIC
from tables import each

MADE = GENERATED | PARTS
CHECK = runpy.run_path(str(DOCS / "sentences.py"))

_EXTENSIONS = ["admonition", "attr_list", "tables", "pymdownx.superfences"]  # those of mkdocs.yml that make blocks
_CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
_RAW = re.compile(r"^(?:<p>)?\s*(?:[-*+] |\d+\. |\|).*", re.MULTILINE)  # what is left of a list or a table


def raw(text):
    """Return the lines that the site shows with the signs of a list or a table: it needs a blank line before it."""
    shown = markdown.markdown(text, extensions=_EXTENSIONS, output_format="html")
    return [found[0][:60] for found in _RAW.finditer(_CODE.sub("CODE", shown))]


@each("page", PAGES)
def test_lists_and_tables_are_shown_as_such(page):
    assert raw(PAGES[page].read_text(encoding="utf-8")) == [], "put a blank line before the list or table"


@each("page", MADE)
def test_generated_lists_and_tables_are_shown_as_such(page):
    assert raw(MADE[page]()) == []


@each("page", CHECK["pages"]())
def test_no_sentence_is_too_long(page):
    assert CHECK["too_long"](page) == [], "make two sentences of each"


def test_what_is_wrong_in_a_page_is_found():
    assert raw("These are:\n- a\n- b\n\n| a |\n|---|\n| b |\n") == ["- a", "- b</p>"]
    long = "word " * 31
    text = f"# A heading\nShort. And\n{long}.\n\n- an item\n- {long}\n\n| a | {long} |\n```\n{long}\n```\n<!-- {long} -->\n"
    found = [(one.line, one.words) for one in CHECK["sentences"](text) if one.words > CHECK["LONGEST"]]
    assert found == [(2, 32), (6, 31), (8, 31)]


def test_no_sentence_that_the_reference_takes_from_the_code_is_too_long():
    texts = {page: made() for page, made in MADE.items() if page != "reference/python.md"}
    for module, names in PUBLIC.items():
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            for part in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
                said = inspect.getdoc(one := part.fget if isinstance(part, property) else part)
                if said and (getattr(one, "__module__", None) or "").startswith("onceward"):
                    listed = re.sub(r"^    (?=\w+: )", "- ", docstrings.plain(said), flags=re.MULTILINE)
                    texts[f"{module}.{name}: {said[:40]}"] = listed
    assert len(texts) > 200
    for where, text in texts.items():
        assert [one for one in CHECK["sentences"](text) if one.words > CHECK["LONGEST"]] == [], where


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


def test_the_page_of_extras_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`[^|]+) \|", (DOCS / "reference" / "extras.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(project["optional-dependencies"])


def test_each_page_that_installs_onceward_says_where_it_comes_from():
    pages = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    installing = {page for page, text in pages.items() if re.search(r"pip install [^`\n]*onceward", text)}
    told = {page for page, text in pages.items() if "extras.md#from-a-clone)" in text or "## From a clone" in text}
    assert len(installing) > 15
    assert installing <= told
