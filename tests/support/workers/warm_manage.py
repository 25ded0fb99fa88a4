"""Runs a project's ``manage.py`` in forks of a process that has imported what it takes; see warm_command.py."""

import os
import runpy
import sys

import django.contrib.admin
import django.core.management.commands.migrate
import django.core.management.commands.shell
import django.test  # noqa: F401 - so that no fork has to
from warm_command import end, next_command

if __name__ == "__main__":
    sys.argv = next_command()
    sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
    end(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
