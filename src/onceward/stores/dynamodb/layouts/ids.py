"""Turns a ledger's keys into ids of another system's items, and back."""

import json
from typing import Final

from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import ledger_key

ESCAPE: Final = ":"  # neither a ledger's key nor one of their ids starts with it


def unquoted(form: str) -> str:
    """Return the str from which a part of a ledger's key was made; any other part is returned as it is."""
    if not form.startswith('"'):
        return form
    try:
        return str(json.loads(form))
    except ValueError:
        return form


def key_of_text(name: str, text: str) -> str:
    """Return the ledger's key of a str, even of one that guards refuse, such as an empty one."""
    try:
        return ledger_key(name, text)
    except KeyMissing:
        return f"{name}:{json.dumps(text)}"
