"""Each tutorial, and each page or section with the mark, runs exactly as it is printed."""

import re

import pytest

from places import DOCS
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
