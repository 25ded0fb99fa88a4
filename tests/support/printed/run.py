"""Runs a page of the docs as its reader would: its files and commands, in order, in an empty folder.

A block with ``title="shop.py"`` is that file. In a ``console`` block, a line ``$ command`` is run in a shell that lasts for the
page; the lines below it are what it must print. In them, ``...`` stands for any text, and alone on a line for any lines.
``text`` is for what is only read. Any other block must say why it is not run: ``<!-- not run: it needs an AWS account -->``.

Three things differ from what is printed. Ports of 127.0.0.1 are free ones, PostgreSQL, RabbitMQ and Kafka are those of the tests, and
``pip install`` checks that the packages are there.
"""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from places import SOURCES, SUPPORT
from printed.pages import read
from servers.ministack import ministack
from servers.needs import free_port
from servers.orphans import watched

PATIENCE = 180  # seconds that one command may take on a slow machine
_PORT = re.compile(r"127\.0\.0\.1:(\d+)")
SERVERS = {
    "postgresql": re.compile(r"postgresql://\w+@127\.0\.0\.1:\d+/\w+"),
    "rabbitmq": re.compile(r"amqp://\w+:\w+@127\.0\.0\.1:\d+/"),
    "kafka": re.compile(r"(?<=KAFKA_SERVERS=)127\.0\.0\.1:\d+"),
}


class Printed(NamedTuple):
    """A block of a page that is run: a file, or a command and what it prints."""

    line: int
    title: str | None
    text: str
    shown: str = ""


def blocks(text: str) -> list[Printed]:
    found = []
    for block in read(text):
        if block.mark or block.language == "text":
            continue
        if block.title:
            found.append(Printed(block.line, block.title, block.text))
        elif block.language == "console":
            found += _commands(block.line, block.text)
        else:
            raise AssertionError(f"line {block.line}: give this block a title, or say why it is not run")
    return found


def _commands(line: int, text: str) -> list[Printed]:
    first, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not first.strip(), f"line {line}: a console block begins with a command"
    found = []
    for number, each in enumerate(rest):
        lines = each.split("\n")
        length = next(n for n, one in enumerate(lines, 1) if not one.endswith("\\"))
        above = first + "$ ".join(["", *rest[:number]])
        command, shown = "\n".join(lines[:length]), "\n".join(lines[length:])
        found.append(Printed(line + 1 + above.count("\n"), None, command, shown))
    return found


def run(name: str, text: str, folder: Path, servers: Mapping[str, str] = MappingProxyType({})) -> None:
    for server, url in servers.items():
        text = SERVERS[server].sub(url, text)
    for port in sorted({*_PORT.findall(text)} - {*_PORT.findall(" ".join(servers.values()))}):
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    shell = Shell(folder, aws="ministack" in text)
    try:
        for block in blocks(text):
            if block.title:
                file = folder / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
                continue
            said, status = shell.run(block.text)
            where = f"{name}:{block.line}: $ {block.text}"
            differs = f"prints\n{said.strip()}\nand not\n{block.shown.strip()}\n"
            assert matches(block.shown, said), f"{where}\n{differs}{_logs(folder)}"
            assert status == 0 or block.shown.strip(), f"{where}\nends with status {status}\n{_logs(folder)}"
    finally:
        shell.close()


def matches(shown: str, said: str) -> bool:
    """Say whether a command printed what the page shows."""
    lines = (re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in shown.strip("\n").split("\n"))
    pattern = "".join(r"(?:.*\n)*" if line == ".*" else rf"{line}\n" for line in lines)
    plain = "".join(f"{line.rstrip()}\n" for line in said.strip("\n").split("\n"))
    return re.fullmatch(pattern, plain) is not None


class Shell:
    """A bash that keeps its folder, variables and background jobs from one command to the next."""

    def __init__(self, folder: Path, *, aws: bool) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        place = {"cwd": folder, "env": _environment(folder, aws=aws)}
        # It begins a session, so that its background jobs can be killed with it.
        bash = subprocess.Popen(["bash", "--norc", "--noprofile"], start_new_session=True, **pipes, **place)
        self._process = watched(bash)

    def run(self, command: str) -> tuple[str, int]:
        """Run a command; return what it printed, and its exit status. A server is waited for until it listens."""
        end = f"end-{uuid.uuid4().hex}"
        script = f"{{ {command}\n}} </dev/null\ns=$?; printf '\\n%s %d\\n' {end} $s; (exit $s)\n"
        self._process.stdin.write(script.encode())
        self._process.stdin.flush()
        said = self._until(re.compile(rf"\n{end} (\d+)\n"), command)
        if command.rstrip().endswith("&"):
            for port in re.findall(r"\b\d{4,5}\b", command):
                self._listening(port)
        return said

    def _until(self, end: re.Pattern[str], command: str) -> tuple[str, int]:
        limit, said = time.monotonic() + PATIENCE, b""
        while True:
            ready = wait([self._process.stdout], max(0, limit - time.monotonic()))
            chunk = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            said += chunk
            if found := end.search(text := said.decode(errors="replace")):
                return text[: found.start()], int(found[1])
            assert chunk, f"$ {command}\ndoes not end, or ends the shell; it printed\n{text}"

    def _listening(self, port: str) -> None:
        probe = f"for n in $(seq {PATIENCE * 5}); do (: </dev/tcp/127.0.0.1/{port}) 2>&- && break; sleep 0.2; done"
        self.run(probe)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def _environment(folder: Path, *, aws: bool) -> dict[str, str]:
    """Return the variables of a reader who has just installed what the page says, and nothing else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ONCEWARD_", "PYTEST_"))}
    tools = folder / ".tools"
    tools.mkdir()
    _script(tools / "pip", f'exec {sys.executable} {SUPPORT / "printed_pip.py"} "$@"')
    if aws:
        _script(tools / "ministack", f'PYTHONPATH={ministack()}:{SOURCES} exec {sys.executable} -m ministack "$@"')
    _script(tools / "onceward", f'exec {sys.executable} -m onceward "$@"')  # this tree's
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # As if nothing but onceward's plugin were installed.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "onceward.testing.pytest_plugin"}
    quiet = {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0", "BIND_HOST": "127.0.0.1"}  # of MiniStack
    own = {"PATH": path, "HOME": str(folder), "TMPDIR": str(tools), "PYTHONPATH": str(SOURCES), "NO_COLOR": "1"}
    return kept | own | plugins | quiet


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.log"))
