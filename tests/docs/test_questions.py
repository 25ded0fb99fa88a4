"""Each question that users ask is answered two clicks from the start page, and the site's own search finds the answer."""

import json
import re
import subprocess
from pathlib import Path

from questions import QUESTIONS

from places import DOCS, ROOT
from servers.needs import needs

INDEX = (DOCS / "index.md").read_text(encoding="utf-8")


def test_the_start_page_has_every_question_with_its_answer():
    assert len(QUESTIONS) >= 30
    assert [one.text for one in QUESTIONS if f"[{one.text}]({one.place})" not in INDEX] == []


def test_the_search_finds_each_answer_among_the_first_three(site):
    command = [needs("node", "apt-get install nodejs"), str(Path(__file__).with_name("search.js")), str(site)]
    done = subprocess.run([*command, *(one.words for one in QUESTIONS)], capture_output=True, text=True, check=True)
    found = {one: pages.split()[:3] for one, pages in zip(QUESTIONS, done.stdout.splitlines(), strict=True)}
    lost = {one.words: pages for one, pages in found.items() if one.place.partition(".md")[0] + ".html" not in pages}
    assert lost == {}, json.dumps(lost, indent=1)


def test_each_answer_is_two_clicks_from_the_start_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert [one.place for one in QUESTIONS if f" {one.place.partition('#')[0]}\n" not in navigation] == []
    assert not re.search(r"^ {10}- ", navigation, re.MULTILINE), "a tab has pages, and no folders"
