"""The rooms of the house: no circle of files. import-linter checks the floors and the circles of packages (`make lint`)."""

import ast
import importlib.util
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from grimp import build_graph

import onceward
from places import ROOT

SOURCE = Path(onceward.__file__).parent


def test_no_file_imports_itself_by_way_of_others():
    graph = build_graph("onceward", exclude_type_checking_imports=True, cache_dir=None)
    files = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(files).prepare()  # CycleError names the files


def test_records_and_writes_are_made_by_keyword():
    """So that a field can be added."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Record", "Write"}:
                assert node.args == [], f"{file}:{node.lineno}"


DJANGOS = {"Command", "Meta", "Migration"}


def test_no_two_classes_share_a_name():
    """But for private ones, which no other module may use, and for those whose names are Django's."""
    homes = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for name in re.findall(r"^\s*class ([A-Za-z]\w*)", file.read_text(), re.MULTILINE):
            homes[name].append(str(file))
    assert {name: files for name, files in homes.items() if len(files) > 1 and name not in DJANGOS} == {}


def test_what_benchmarks_and_examples_import_of_the_package_and_of_the_tests_is_there():
    homes = {"onceward", *(folder.name for folder in (ROOT / "tests" / "support").iterdir() if folder.is_dir())}
    files = [file for folder in ("benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in homes:
                missing = [one.name for one in node.names if not is_there(node.module, one.name)]
                assert missing == [], f"{file.name} imports them from {node.module}"


def is_there(module, name):
    try:
        return (
            hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
        )
    except ModuleNotFoundError:
        return False
