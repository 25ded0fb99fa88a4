"""The page on what to install has every extra, and no other."""

import re
import tomllib

from places import DOCS, ROOT


def test_the_page_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`[^|]+) \|", (DOCS / "reference" / "extras.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(project["optional-dependencies"])
