"""The code of the explanation pages runs, and their pictures are what the code draws."""

import re
import subprocess
import sys

from places import DOCS

sys.path.insert(0, str(DOCS))
from generated import states
from tables import each

PAGES = {
    page.stem: re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for page in sorted((DOCS / "explanation").glob("*.md"))
    if page.stem != "architecture"  # test_pages_run.py runs that one, with a toy store
}


@each("page", [page for page, blocks in PAGES.items() if blocks])
def test_the_code_of_the_page_runs(page):
    for block in PAGES[page]:
        exec(compile(block, f"docs/explanation/{page}.md", "exec"), {"__name__": "shop"})


def test_the_pictures_are_what_the_code_draws():
    command = [sys.executable, str(DOCS / "pictures" / "draw.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_every_picture_is_on_a_page_with_a_text_for_those_who_do_not_see_it():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")) + states.part()
    for picture in (DOCS / "explanation" / "pictures").glob("*.svg"):
        assert re.search(rf"!\[[^\]]{{20,}}\]\(\S*pictures/{picture.name}\)", pages), picture.name
