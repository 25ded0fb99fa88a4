"""``python -m onceward``: the command line."""

from onceward.cli import main

main()
