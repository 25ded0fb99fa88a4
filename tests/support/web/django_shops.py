"""The example project of Django on a database, and its ``manage.py`` as processes."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from commands.command_line import warm
from places import EXAMPLES, SOURCES, SUPPORT

PROJECT = EXAMPLES / "django_shop"
NUMBERS = itertools.count()


class Shop:
    def __init__(self, database: str, settings: str = "shop.settings", **environment: str) -> None:
        paths = os.pathsep.join(map(str, (SOURCES, PROJECT, SUPPORT / "shop_sites")))
        self.database = database
        own = {"PYTHONPATH": paths, "DATABASE": database, "DJANGO_SETTINGS_MODULE": settings}
        self.environment = {**os.environ, **own, "SECRET_KEY": "nobody's", **environment}

    def manage(self, *arguments: object, status: int = 0, python: "str | Path" = sys.executable) -> str:
        command = list(map(str, (PROJECT / "manage.py", *arguments)))
        if python == sys.executable:
            done = warm("manage.py").run(command, PROJECT, self.environment, None, 120)
            told = done.stdout.decode() + done.stderr
        else:
            done = subprocess.run([python, *command], env=self.environment, capture_output=True, text=True, timeout=120)
            told = done.stdout + done.stderr
        assert done.returncode == status, told
        return told

    def run(self, text: str, status: int = 0, python: "str | Path" = sys.executable) -> str:
        return self.manage("shell", "-v0", "--no-imports", "-c", dedent(text), status=status, python=python)


def database_of(kind, folder, postgres=None, mariadb=None):
    """Return the URL of an empty database, as the project's settings take it."""
    name = f"shop_{os.getpid()}_{next(NUMBERS)}"
    if kind == "sqlite":
        return f"sqlite3://{folder}/{name}.db"
    if kind == "mysql":
        return mariadb.database(name)
    postgres.sql(f"CREATE DATABASE {name}")
    return postgres.url.replace("/test", f"/{name}")
