"""What works on every system, and what says that it does not. It runs as it is on macOS and Windows, with pytest alone.

On Linux a process without the modules and functions that Windows lacks stands in for Windows. It is not Windows: file locks,
paths and sockets stay those of Linux.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onceward

HERE = Path(__file__).parent
# Libraries are loaded first: they know their system, and only onceward must do without POSIX.
POSIXLESS = f"""
import asyncio, concurrent.futures, logging, multiprocessing, selectors, sqlite3, ssl, subprocess, sys, tempfile, threading
for name in ("typer", "rich.console", "starlette.applications", "jinja2", "psycopg", "psycopg_pool", "redis", "pymysql", "django",
             "botocore.session", "opentelemetry.sdk.trace", "prometheus_client", "flask", "fastapi", "sqlalchemy.ext.asyncio", "pytest",
             "celery.app.utils", "celery.app.task", "kombu.pools", "procrastinate.testing", "aiokafka", "aio_pika", "faststream", "dramatiq",
             "taskiq.middlewares", "nats", "httpx", "requests.adapters", "aiohttp", "cryptography.x509", "mcp.server.mcpserver", "mcp", "fastmcp"):
    try:
        __import__(name)
    except ImportError:
        pass
sys.path.insert(0, {str(HERE)!r})
import posixless
posixless.hide()
"""
AS_IT_IS = ""
IMPORTS = """
import json, pkgutil, sys, onceward
try:
    from django.conf import settings  # a project's, which the modules of its app need
    settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin", "onceward.django"])
    import django
    django.setup()
except ImportError:
    pass
trouble = {}
for module in pkgutil.walk_packages(onceward.__path__, "onceward.", onerror=lambda name: None):
    if not module.name.endswith(".__main__"):
        try:
            __import__(module.name)
        except ImportError as error:
            trouble[module.name] = [error.name, str(error)]
        except Exception as error:
            trouble[module.name] = [None, repr(error)]
print(json.dumps(trouble))
"""
CALLS = """
import asyncio, json, sys, time
from onceward import Once
answers = []
for url in ("memory:", "sqlite:///ledger.db"):
    once = Once(url, lease=0.5)
    @once(key="order.id", name="n")
    def charge(order: dict) -> int:
        answers.append("entered")
        time.sleep(1.2)
        return order["id"]
    @once(key="order.id", name="m")
    async def charge_async(order: dict) -> int:
        answers.append("entered")
        return order["id"]
    answers += [charge({"id": 7}), charge({"id": 7}), *(asyncio.run(charge_async({"id": 8})) for _ in range(2))]
    once.close()
print(json.dumps(answers))
"""
COMMAND = "import sys; sys.argv = ['onceward', *sys.argv[1:]]; from onceward.cli import main; main()"


@pytest.fixture(params=[POSIXLESS, AS_IT_IS], ids=["without POSIX", "as it is"])
def start(request, tmp_path):
    """Return what runs a program to its end in an empty folder, with POSIX hidden, or as this system is."""

    def run(code, *arguments, **options):
        return subprocess.run(
            [sys.executable, "-c", request.param + code, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(onceward.__file__).parents[1]), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **options,
        )

    return run


@pytest.mark.slow
@pytest.mark.nightly
def test_every_module_can_be_imported_or_says_what_to_install(start):
    result = start(IMPORTS)
    assert result.returncode == 0, result.stderr
    trouble = json.loads(result.stdout.splitlines()[-1])
    strange = {
        module: said
        for module, (name, said) in trouble.items()
        if "pip install" not in said
        and (name or "onceward").partition(".")[0] in {*sys.stdlib_module_names, "onceward"}
    }  # other libraries are extras
    assert strange == {}


@pytest.mark.slow
@pytest.mark.sampled("without POSIX")
def test_a_guarded_call_runs_once_and_its_lease_is_renewed(start):
    result = start(CALLS)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == ["entered", "entered", 7, 7, 8, 8] * 2


@pytest.mark.slow
@pytest.mark.nightly
def test_lines_are_piped_to_a_function(start, tmp_path):
    (tmp_path / "shop.py").write_text("def charge(line):\n    return line['id']\n")
    (tmp_path / "lines").write_text('{"id": 1}\n{"id": 2}\n{"id": 1}\n')
    result = start(COMMAND, "pipe", "lines", "--key", "line.id", "--call", "shop:charge", "--jobs", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1", "2", "1"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("start", [POSIXLESS], ids=["without POSIX"], indirect=True)
def test_what_needs_posix_says_so(start):
    refused = start(COMMAND, "pipe", "--key", "line.id", "--", sys.executable, "-V", input="")
    assert refused.returncode == 2
    assert "a command after -- needs a POSIX system, where it is killed if onceward is. Use --call" in refused.stderr
    refused = start(COMMAND, "demo")
    assert refused.returncode == 1
    assert "the demo pauses workers by SIGSTOP, which this system does not have" in refused.stderr
