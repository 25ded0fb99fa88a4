"""The page on what to install has every extra, and no other."""

import re
import tomllib

from places import DOCS, ROOT


def test_the_page_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`[^|]+) \|", (DOCS / "reference" / "extras.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(project["optional-dependencies"])


def test_each_page_that_installs_onceward_says_where_it_comes_from():
    pages = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    installing = {page for page, text in pages.items() if re.search(r"pip install [^`\n]*onceward", text)}
    told = {page for page, text in pages.items() if "extras.md#from-a-clone)" in text or "## From a clone" in text}
    assert len(installing) > 15
    assert installing <= told
