"""A list or a table needs a blank line before it. Otherwise the site shows it as part of the paragraph."""

import re
import sys

import markdown

from places import DOCS
from printed.pages import PAGES

sys.path.insert(0, str(DOCS))
from generated import PAGES as GENERATED
from generated import PARTS
from tables import each

MADE = GENERATED | PARTS

_EXTENSIONS = ["admonition", "attr_list", "tables", "pymdownx.superfences"]  # those of mkdocs.yml that make blocks
_CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
_RAW = re.compile(r"^(?:<p>)?\s*(?:[-*+] |\d+\. |\|).*", re.MULTILINE)  # what is left of a list or a table


def raw(text):
    """Return the lines that the site shows with the signs of a list or a table."""
    shown = markdown.markdown(text, extensions=_EXTENSIONS, output_format="html")
    return [found[0][:60] for found in _RAW.finditer(_CODE.sub("CODE", shown))]


@each("page", PAGES)
def test_lists_and_tables_are_shown_as_such(page):
    assert raw(PAGES[page].read_text(encoding="utf-8")) == [], "put a blank line before the list or table"


@each("page", MADE)
def test_generated_lists_and_tables_are_shown_as_such(page):
    assert raw(MADE[page]()) == []


def test_a_list_or_a_table_below_a_line_of_text_is_found():
    assert raw("These are:\n- a\n- b\n") == ["- a", "- b</p>"]
    assert raw("```console\n$ ls\n- a\n```\n| a |\n|---|\n") == ["| a |", "|---|</p>"]
    assert raw("These are:\n1. a\n") == ["1. a</p>"]
    assert raw("These are:\n\n- a\n  goes on\n\n| a |\n|---|\n| b |\n") == []
