"""``python -m onceward.cli``."""

from onceward.cli import main

main()
