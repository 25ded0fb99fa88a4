"""The rooms of the house: no circle of files. import-linter checks the floors and the circles of packages (`make lint`)."""

import ast
import importlib.util
import re
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from grimp import build_graph

import onceward
from places import ROOT


def test_no_file_imports_itself_by_way_of_others():
    graph = build_graph("onceward", exclude_type_checking_imports=True, cache_dir=None)
    files = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(files).prepare()  # CycleError names the files


DJANGOS = {"Command", "Meta", "Migration"}


def test_no_two_classes_share_a_name():
    """But for private ones, which no other module may use, and for those whose names are Django's."""
    homes = defaultdict(list)
    for file in sorted(Path(onceward.__file__).parent.rglob("*.py")):
        for name in re.findall(r"^\s*class ([A-Za-z]\w*)", file.read_text(), re.MULTILINE):
            homes[name].append(str(file))
    assert {name: files for name, files in homes.items() if len(files) > 1 and name not in DJANGOS} == {}


PEERS = {
    "aioboto3",
    "asgi-idempotency-header",
    "boto3",
    "dbos",
    "idemkit",
}  # not used, or not of this version, elsewhere
MODULES = {"nats": "nats-py", "django": "django", "idempotency_header_middleware": "asgi-idempotency-header"}
BROUGHT = {"botocore", "opentelemetry", "urllib3", "onceward"}  # by those that are named


def pins(file):
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (line.partition("==")[::2] for line in lines)
    return {name.partition("[")[0].lower().replace("_", "-"): version for name, version in pairs}


@pytest.mark.slow
def test_the_benchmarks_requirements_name_all_that_they_import():
    folder = ROOT / "benchmarks"
    required, versions = pins(folder / "requirements.txt"), pins(ROOT / "constraints.txt")
    assert {name: one for name, one in required.items() if name not in PEERS and versions[name] != one} == {}
    own = {file.stem for place in (folder, ROOT / "tests" / "support") for file in place.iterdir()}
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {name.partition(".")[0] for name in names} - own - BROUGHT - sys.stdlib_module_names:
                wanted = MODULES.get(name, name.replace("_", "-"))
                assert {wanted, f"{wanted}-binary"} & required.keys(), f"{file.name} imports {name}"


def test_what_benchmarks_and_examples_import_of_the_package_is_there():
    files = [file for folder in ("benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "onceward":
                missing = [one.name for one in node.names if not is_there(node.module, one.name)]
                assert missing == [], f"{file.name} imports them from {node.module}"


def is_there(module, name):
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
