"""Each tutorial, and each how-to page with commands, runs exactly as it is printed."""

import re

import pytest

from places import DOCS
from printed import run as printed
from servers.needs import numbers

_NUMBERS = numbers()
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), *sorted((DOCS / "how-to").glob("*.md"))]
LONG = {"agent", "celery", "crash-test", "faststream", "pipelines"}  # these take ten seconds of CPU and more
RUN = [page for page in PAGES if page.parent.name == "tutorials" or printed.MARK in page.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.nightly if page.stem in LONG else ())
        for page in RUN
        if page.stem != "index"
    ],
)
def test_the_page_runs_as_printed(page, tmp_path, request):
    database = None
    if "postgresql://" in page.read_text(encoding="utf-8"):
        server = request.getfixturevalue("postgres15")
        server.sql(f"CREATE DATABASE {(name := f'page_{next(_NUMBERS)}')}")
        database = server.url.rpartition("/")[0] + f"/{name}"
    printed.run(page, tmp_path, database)


def test_a_page_that_prints_something_else_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('```python title="a.py"\nprint("b")\n```\n```console\n$ python a.py\nc\n```\n')
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssertionError, match=r"page.md:5: \$ python a.py\nprints\nb\nand not\nc"):
        printed.run(page, tmp_path / "empty")


@pytest.mark.parametrize(
    ("shown", "said", "same"),
    [
        ("a\n", "a", True),
        ("a\n", "a\nb", False),
        ("", "a", False),
        ("a ... c\n", "a b c", True),
        ("a ... c\n", "a b\nc", False),
        ("a\n...\nd\n", "a\nb\nc\nd", True),
        ("a\n...\nd\n", "a\nd", True),
        ("a\n...\nd\n", "a\nb\nc", False),
        ("a.c\n", "abc", False),
    ],
)
def test_dots_stand_for_what_differs_from_run_to_run(shown, said, same):
    assert printed.matches(shown, said) is same


def test_a_block_that_nobody_runs_must_say_why():
    with pytest.raises(AssertionError, match="line 2: give this block a title"):
        printed.blocks("Text\n```python\nprint()\n```\n")
    assert printed.blocks("<!-- not run: it costs money -->\n```console\n$ buy\n```\n") == []


def test_no_page_kills_a_job_before_the_redirection_that_hides_what_bash_says_of_it():
    # If the job is dead before `wait` begins, bash reports it outside of `wait 2> file`, in one of ten runs on a busy machine.
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"kill -9 [^\n}]*; wait [^\n}]*2>", page.read_text(encoding="utf-8")), page.name


def test_no_page_waits_for_ever():
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"(?m)^\$ (.*; )?(until|while) ", page.read_text(encoding="utf-8")), page.name
