"""No sentence of the docs is too long to read."""

import importlib
import inspect
import re
import runpy
import sys

from places import DOCS
from tables import each

CHECK = runpy.run_path(str(DOCS / "sentences.py"))
PAGES = CHECK["pages"]()


@each("page", PAGES)
def test_no_sentence_is_too_long(page):
    assert CHECK["too_long"](page) == [], "make two sentences of each"


def test_a_long_sentence_is_found_at_its_line():
    long = "word " * 31
    text = f"# A heading\nShort. And\n{long}.\n\n- an item\n- {long}\n\n| a | {long} |\n```\n{long}\n```\n<!-- {long} -->\n"
    found = [(one.line, one.words) for one in CHECK["sentences"](text) if one.words > CHECK["LONGEST"]]
    assert found == [(2, 32), (6, 31), (8, 31)]


def test_code_and_links_count_as_what_is_read():
    (one,) = CHECK["sentences"]("Use `once.run(a, b, c)` as [the page](a.md#one-two) says.")
    assert one.words == 6


def test_no_sentence_that_the_reference_takes_from_the_code_is_too_long():
    sys.path.insert(0, str(DOCS))
    from generated import PAGES as GENERATED
    from generated import PARTS, docstrings
    from generated.python_api import PUBLIC

    texts = {page: made() for page, made in (GENERATED | PARTS).items() if page != "reference/python.md"}
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
