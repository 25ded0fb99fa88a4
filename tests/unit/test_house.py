"""The rooms of the house: no circle of files. import-linter checks the floors and the circles of packages (`make lint`)."""

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from grimp import build_graph

import onceward


def test_no_file_imports_itself_by_way_of_others():
    graph = build_graph("onceward", exclude_type_checking_imports=True, cache_dir=None)
    files = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(files).prepare()  # CycleError names the files


def test_core_imports_nothing_of_ours_but_the_errors():
    graph = build_graph("onceward", exclude_type_checking_imports=True, cache_dir=None)
    core = {"onceward.core"} | graph.find_descendants("onceward.core")
    imported = {found for module in core for found in graph.find_modules_directly_imported_by(module)}
    assert imported - core == {"onceward.errors"}


def test_no_two_classes_share_a_name():
    """But for private ones, which no other module may use."""
    homes = defaultdict(list)
    for file in sorted(Path(onceward.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
