"""The docs site builds strictly, needs nothing from elsewhere, has every public thing in its reference, and answers what users ask."""

import ast
import fcntl
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from questions import QUESTIONS
from typer.testing import CliRunner

import onceward
from onceward import Policy, Record
from onceward.cli.app import command_line
from onceward.http import problem
from places import DOCS, ROOT, SOURCES
from printed.pages import PAGES, blocks
from servers.needs import needs

sys.path.insert(0, str(DOCS))
from generated import PAGES as GENERATED
from generated import PARTS, errors, states
from generated.commands import commands
from generated.python_api import PUBLIC
from tables import each


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the site. The first test builds it, strictly; tests that run beside that one wait."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the run
    made = folder / "site"
    with open(folder / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "built").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert built.returncode == 0, built.stderr
            (made / "built").touch()
    return made


class Loads(HTMLParser):
    """Collects what a page loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in {"script", "img", "iframe", "source"} and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        if given.get("id"):
            self.anchors.add(given["id"])


def read(site, page):
    return (site / page).read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > 40
    for page in pages:
        loaded = Loads(page.read_text(encoding="utf-8")).loaded
        assert [one for one in loaded if one.startswith(("http:", "https:", "//"))] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


@each("page", [page for page in PAGES if not page.startswith("docs/")])
def test_links_of_pages_outside_the_site_lead_somewhere(site, page):
    text = re.sub(r"^```.*?^```$", "", PAGES[page].read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if link.startswith("https://"):
            continue
        there = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        built = there.relative_to(DOCS).with_suffix(".html") if there.is_relative_to(DOCS) else None
        assert there.exists() or (built and (site / built).exists()), link
        if anchor and built:
            assert anchor in Loads(read(site, built)).anchors, link


def test_the_links_of_a_call_lead_to_the_lines_of_its_functions(site):
    links = re.findall(r'href="\.\./(source/[^#"]+)#([^"]+)"', read(site, "explanation/architecture.html"))
    assert len(links) > 12
    for page, anchor in links:
        line = read(site, page).partition(f'id="{anchor}"')[2].partition("\n")[0]
        assert re.search(r">def</span>|>async</span>", line), (page, anchor)


def test_pages_that_the_code_names_exist():
    for path in SOURCES.rglob("*.py"):
        for page in re.findall(r"(?<![\w./-])docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / page).exists() or page.removeprefix("docs/") in GENERATED, page


def test_every_public_name_is_in_the_reference(site):
    anchors = Loads(read(site, "reference/python.html")).anchors
    for module, names in PUBLIC.items():
        assert [name for name in names if f"{module}.{name}" not in anchors] == [], module
    assert set(PUBLIC["onceward"]) == set(onceward.__all__)


def test_what_the_pages_import_is_in_the_reference():
    known = {f"{module}.{name}" for module, names in PUBLIC.items() for name in names} | set(errors.errors())
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                for node in ast.walk(ast.parse(block.text)):
                    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "onceward":
                        names = {f"{node.module}.{name.name}" for name in node.names}
                        assert names <= known, f"{block.where}: {names - known}"


@each("command", sorted(commands(typer.main.get_command(command_line()))))
def test_every_option_of_a_command_is_in_the_reference(command):
    section = PARTS["commands"]().split(f"### onceward {command}\n")[1].split("\n### ")[0]
    wide = {"COLUMNS": "300", "NO_COLOR": "1"}
    told = CliRunner().invoke(command_line(), [*command.split(), "--help"], env=wide).output
    options = set(re.findall(r"^\W*(--[a-z-]+)", told, re.MULTILINE)) - {"--help"}
    assert options
    assert [option for option in options if f"`{option}`" not in section] == []


def test_every_error_is_in_the_reference_with_cause_and_fix():
    page, known = GENERATED["reference/errors.md"](), errors.errors()
    exported = [getattr(onceward, name) for name in onceward.__all__]
    public = [one.__name__ for one in exported if isinstance(one, type) and issubclass(one, Exception)]
    assert len(public) > 15
    for name in public:
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert re.search(r"^\*\*Cause:\*\* \S(?:.|\n)*^\*\*Fix:\*\* \S", section, re.MULTILINE), name
    names = {one.__qualname__ for one in known.values()}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "\nCause: " in (ast.get_docstring(node) or ""):
                assert node.name in names, f"{path.name}: add it to errors.py in docs/generated"


def test_every_option_answer_and_field_is_in_the_reference():
    options, tables, answers = PARTS["options"](), PARTS["tables"](), GENERATED["reference/errors.md"]()
    assert [name for name in Policy._fields if f"| `{name}` |" not in options] == []
    kinds = set(re.findall(r'Problem\(\s*"([a-z-]+)"', Path(problem.__file__).read_text(encoding="utf-8")))
    assert [kind for kind in kinds if f"| `{kind}` |" not in answers] == []
    assert [name for name in Record._fields if f"| `{name}` |" not in tables] == []


@each("path", [path for path in sorted((DOCS / "explanation").glob("*.md")) if path.stem != "architecture"])
def test_the_code_of_a_page_of_the_explanation_runs(
    path,
):  # test_pages_run.py runs that of the architecture, with a toy store
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(path), "exec"), {"__name__": "shop"})


def test_the_pictures_are_what_the_code_draws():
    command = [sys.executable, str(DOCS / "pictures" / "draw.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_every_picture_is_on_a_page_with_a_text_for_those_who_do_not_see_it():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")) + states.part()
    for picture in (DOCS / "explanation" / "pictures").glob("*.svg"):
        assert re.search(rf"!\[[^\]]{{20,}}\]\(\S*pictures/{picture.name}\)", pages), picture.name


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
