"""The ``seal=`` of guards, as commands are given it: MODULE:NAME."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from onceward.cli.ledgers import USAGE, refuse
from onceward.core.policy import Policy, Seal
from onceward.results.outcomes import describe

SealOption = Annotated[
    str | None, Option(metavar="MODULE:NAME", help="The seal= of the guards: a pair of functions.", show_default=False)
]


def import_here() -> None:
    """Let modules of the working directory be imported."""
    sys.path.insert(0, str(Path.cwd()))


def imported_seal(seal: str | None) -> Seal | None:
    """Return the seal that --seal names, or refuse it."""
    if seal is None:
        return None
    module, colon, name = seal.partition(":")
    if not (module and colon and name):
        refuse(f"--seal {seal}: write module:name, as in --seal shop.crypto:SEAL", USAGE)
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return Policy(seal=found).checked().seal
    except Exception as error:
        refuse(f"--seal {seal}: {describe(error)}", USAGE)
