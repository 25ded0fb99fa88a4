"""Ids of other systems' items: how a ledger's key becomes one, and comes back."""

import json
from typing import Final

from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import ledger_key

ESCAPE: Final = ":"  # no key of a ledger and no id of theirs starts with it


def unquoted(form: str) -> str:
    """Return the str that a part of a ledger's key was made of, where it was made of one (``keys.py``)."""
    if not form.startswith('"'):
        return form
    try:
        return str(json.loads(form))
    except ValueError:
        return form


def key_of_text(name: str, text: str) -> str:
    """Return the ledger's key of a str, also of one that no guard takes."""
    try:
        return ledger_key(name, text)
    except KeyMissing:
        return f"{name}:{json.dumps(text)}"
