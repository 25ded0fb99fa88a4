"""Records and writes are made by keyword, so that a field can be added."""

import ast
from pathlib import Path

import onceward

SOURCE = Path(onceward.__file__).parent


def calls():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "Record(" in text or "Write(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Record", "Write"}:
                yield path, node


def test_no_call_gives_a_field_by_position():
    made = list(calls())
    assert made
    assert [(str(path), node.lineno) for path, node in made if node.args] == []
