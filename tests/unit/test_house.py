"""The rooms of the house: no circle of files. import-linter checks the floors and the circles of packages (`make lint`)."""

from graphlib import TopologicalSorter

from grimp import build_graph


def test_no_file_imports_itself_by_way_of_others():
    graph = build_graph("onceward", exclude_type_checking_imports=True, cache_dir=None)
    files = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(files).prepare()  # CycleError names the files


def test_core_imports_nothing_of_ours_but_the_errors():
    graph = build_graph("onceward", exclude_type_checking_imports=True, cache_dir=None)
    core = {"onceward.core"} | graph.find_descendants("onceward.core")
    imported = {found for module in core for found in graph.find_modules_directly_imported_by(module)}
    assert imported - core == {"onceward.errors"}
