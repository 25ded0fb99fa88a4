"""Every block of code in the pages is tried, or says why not. CONTRIBUTING tells authors how."""

import itertools
import json
import re
import shlex
import tomllib

import typer
import yaml

from onceward.cli.app import command_line
from places import ROOT
from printed.pages import PAGES, blocks, parts
from tables import each

LANGUAGES = {
    "python", "console", "bash", "json", "toml", "go", "java", "ts", "yaml", "sql", "http", "text",
}  # fmt: skip
COMMANDS = typer.main.get_command(command_line())
ALL = [block for page in PAGES for block in blocks(page)]
TESTS = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


def parse(words):
    """Parse the arguments of onceward as the command itself does, without running it."""
    words = words[: words.index("--")] if "--" in words else words
    command, context, rest = COMMANDS, None, words
    while hasattr(command, "commands"):
        context = command.make_context("onceward", [*rest], parent=context, resilient_parsing=not rest)
        _, command, rest = command.resolve_command(context, rest)
    if not {"--help", "-h"}.intersection(rest):
        command.make_context(command.name, rest, parent=context)


def commands(block):
    """Yield the arguments of each command line of onceward in a block of the shell."""
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        if line.startswith("$ ") or block.language == "bash":
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            for control, group in itertools.groupby(lexer, lambda word: set(word) <= set(";|&<>")):
                words = [*itertools.dropwhile(re.compile(r"[A-Z_]+=").match, group)]
                if not control and words[:1] == ["onceward"]:
                    yield words[1:]


def test_every_block_has_a_language_and_a_mark_is_one_of_a_few():
    assert {block.mark for block in ALL} <= {None, "not run", "run", "frames"}
    assert [block.where for block in ALL if block.language not in LANGUAGES] == [], f"write one of {sorted(LANGUAGES)}"


def _is_run(page):
    if page.startswith("docs/explanation/") or parts(PAGES[page]):
        return True  # test_site.py, test_printed.py
    folder, _, name = page.removeprefix("docs/").rpartition("/")
    ways = (f'"{page}"', f'"{folder}" / "{name}"')
    return any(way in text for text in TESTS.values() for way in ways)


@each("page", sorted({block.page for block in ALL if block.language == "python" and block.mark != "not run"}))
def test_a_test_runs_the_python_of_the_page(page):
    assert _is_run(page), "run it in tests/docs/test_pages_run.py, or write <!-- not run: why --> above each block"


@each("block", [one for one in ALL if one.language == "python"])
def test_python_is_python(block):
    compile(block.text, block.where, "exec")


@each("block", [one for one in ALL if one.language in {"json", "toml", "yaml"}])
def test_data_can_be_read(block):
    {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load_all}[block.language](block.text)


@each("block", [one for one in ALL if one.language in {"console", "bash"}])
def test_each_command_is_one_that_onceward_takes(block):
    if block.language == "console":
        assert block.text.startswith(("$ ", "#")), "a console block begins with a command after a dollar"
    for command in commands(block):
        try:
            parse(command)
        except Exception as error:
            error.add_note(f"{block.where}: onceward {shlex.join(command)}")
            raise


def test_commands_in_the_text_exist():
    known = set(COMMANDS.commands) | {"--version", "--help"}
    for page, path in PAGES.items():
        for command in re.findall(r"`onceward ([a-z-]+)[^`]*`", path.read_text(encoding="utf-8")):
            assert command in known, f"{page}: onceward {command}"
