"""``manage.py onceward ls``: the commands of ``onceward``, on the project's ledger."""

import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from onceward.terminal import Screen
from onceward.web.django_project import configuration, project_once, project_url


class Command(BaseCommand):
    """Runs a command of ``onceward`` with the project's ledger as its ``--store``."""

    help = "Run a command of onceward on the project's ledger, as in: manage.py onceward ls --status PARKED"
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take all that follows as it is."""
        parser.add_argument("arguments", nargs=REMAINDER, metavar="COMMAND", help="as `onceward --help` lists them")

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """Run it. The exit status is that of the command."""
        try:
            from onceward.cli.app import run
        except ModuleNotFoundError as error:
            raise CommandError(f"manage.py onceward needs {error.name}: pip install 'onceward[cli]'") from error
        url = project_once().guards.url if "once" in configuration() else project_url()
        buffer = BytesIO()  # for who gives a stream: a terminal's text needs a buffer
        out = TextIOWrapper(buffer, "utf-8") if options.get("stdout") else sys.stdout
        try:
            # not an argument, which other users of this machine could read
            with redirect_stdout(out), redirect_stderr(sys.stderr), _environment("ONCEWARD_STORE", url):
                try:
                    run(arguments or ["--help"], "manage.py onceward")
                finally:
                    for stream in (sys.stdout, sys.stderr):
                        if isinstance(stream, Screen):
                            stream.detach()  # else its end closes the process's own
        finally:
            self.stdout.write(buffer.getvalue().decode(), ending="")


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment, and put back what was there. None sets nothing."""
    before = os.environ.get(name)
    try:
        if value is not None:
            os.environ[name] = value
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
