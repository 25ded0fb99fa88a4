"""Runs a project's ``manage.py`` in forks of a process that has imported what it takes; see warm_command.py."""

import atexit
import os
import runpy
import sys

from warm_command import next_command

if __name__ == "__main__":
    sys.argv = next_command()
    sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    os._exit(status)  # what a fork has inherited is not its own to take down
