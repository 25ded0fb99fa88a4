"""docs/explanation/architecture.md is true: its rooms are there, its floors are those of the linter, and its frames are those of real calls."""

import re
import socket
import sys
import threading
import tomllib
from email.utils import formatdate
from pathlib import Path

import pytest

import onceward
from onceward import Once

ROOT = Path(__file__).parents[2]
SOURCE = Path(onceward.__file__).parent
TEXT = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def told(store):
    """Return the frames that the page tells for a store."""
    block = re.search(rf"<!-- frames: {store} -->\n```text\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    return [tuple(line.split()) for line in block[1].splitlines()]


def stack_at(function, call):
    """Return our frames, the outermost first, at the last call of a built-in function of this name before the handler."""
    stacks, begun = [], []

    def hear(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "charge":
            begun.append(True)
        if event == "c_call" and arg.__name__ == function and not begun:
            found = []
            while frame is not None:
                path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
                if path.is_relative_to(SOURCE):
                    found.append((str(path.relative_to(SOURCE)), name))
                frame = frame.f_back
            stacks.append(found[::-1])

    sys.setprofile(hear)
    try:
        call()
    finally:
        sys.setprofile(None)
    return stacks[-1]


def guarded(once):
    @once(key="order.id", name="shop")
    def charge(order: dict) -> int:
        return 1

    charge({"id": "the first call opens the connection"})
    return lambda: charge({"id": "another"})


@pytest.fixture
def agreeable():
    """Return the port of a server that says yes to every write."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        client, _ = listener.accept()
        with client:
            while client.recv(65536):
                head = f"HTTP/1.1 200 OK\r\nDate: {formatdate(usegmt=True)}\r\nContent-Length: 2\r\n"
                client.sendall(f"{head}Content-Type: application/x-amz-json-1.0\r\n\r\n{{}}".encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(60)
    listener.close()


def test_the_frames_of_a_call_on_dynamodb_are_those_that_are_told(agreeable, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    once = Once(f"dynamodb://orders?region=eu-west-1&endpoint=http://127.0.0.1:{agreeable}")
    try:
        found = stack_at("sendall", guarded(once))
    finally:
        once.close()
    assert found == told("dynamodb")
    assert len(found) == 9


def test_the_frames_of_a_call_on_sqlite_are_those_that_are_told(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")
    found = stack_at("execute", guarded(once))
    once.close()
    assert found == told("sqlite")


def test_each_folder_is_named():
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")} - {Path()}
    assert [f"{folder}/" for folder in folders if f"`{folder}/`" not in TEXT] == []


def test_the_floors_are_those_of_the_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = [set(re.findall(r"\w+", layer)) for layer in next(c for c in contracts if c["type"] == "layers")["layers"]]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", TEXT, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows] == floors


def test_each_file_that_is_named_is_there():
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|toml|md))`", TEXT):
        if "etcd" in name:
            continue
        assert any((folder / name).exists() for folder in (SOURCE, ROOT)), name
