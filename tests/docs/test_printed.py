"""Each tutorial, and each page or section with the mark, runs exactly as it is printed; and CONTRIBUTING's worked examples apply to this tree."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from places import DOCS, ROOT, SOURCES
from printed import run as printed
from printed.pages import parts
from servers.needs import numbers

_NUMBERS = numbers()
# These take ten seconds of CPU and more.
LONG = {
    "A crash test, step by step",
    "A durable function, step by step",
    "A pipeline, step by step",
    "A task, step by step",
    "An agent that pays once",
    "Go and Java",
    "The same on Kafka",
}
RUN = [
    pytest.param(page.name, text, id=f"{page.stem}: {title}", marks=pytest.mark.nightly if title in LONG else ())
    for page in sorted(DOCS.rglob("*.md"))
    for title, text in parts(page).items()
]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "text"), RUN)
def test_the_page_runs_as_printed(page, text, tmp_path, request):
    servers = {}
    if printed.SERVERS["postgresql"].search(text):
        server = request.getfixturevalue("postgres15")
        server.sql(f"CREATE DATABASE {(name := f'page_{next(_NUMBERS)}')}")
        servers["postgresql"] = server.url.rpartition("/")[0] + f"/{name}"
    if printed.SERVERS["rabbitmq"].search(text):
        servers["rabbitmq"] = request.getfixturevalue("rabbitmq").url
    if printed.SERVERS["kafka"].search(text):
        servers["kafka"] = request.getfixturevalue("kafka").servers
    printed.run(page, text, tmp_path, servers)


def test_a_page_that_prints_something_else_fails(tmp_path):
    page = '```python title="a.py"\nprint("b")\n```\n```console\n$ python a.py\nc\n```\n'
    with pytest.raises(AssertionError, match=r"page.md:5: \$ python a.py\nprints\nb\nand not\nc"):
        printed.run("page.md", page, tmp_path)


def test_no_page_waits_for_ever_or_kills_a_job_before_the_redirection_that_hides_what_bash_says_of_it():
    # If the job is dead before `wait` begins, bash reports it outside of `wait 2> file`, in one of ten runs on a busy machine.
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"kill -9 [^\n}]*; wait [^\n}]*2>", page.read_text(encoding="utf-8")), page.name
        assert not re.search(r"(?m)^\$ (.*; )?(until|while) ", page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize("name", ["sender", "broker", "store"])
def test_the_worked_example_applies_and_its_test_passes(name, tmp_path):
    diff = DOCS / "worked" / f"{name}.diff"
    text = diff.read_text(encoding="utf-8")
    assert text.count("\n") <= 300
    shutil.copytree(SOURCES, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for file in re.findall(r"^--- a/(?!src/)(.+)$", text, re.MULTILINE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    applied = subprocess.run(["git", "apply", "-C1", str(diff)], cwd=tmp_path, capture_output=True, text=True)
    assert applied.returncode == 0, f"make docs/worked/{name}.diff anew: {applied.stderr}"
    (test,) = re.findall(r"^\+\+\+ b/(tests/.+)$", text, re.MULTILINE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", test]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
