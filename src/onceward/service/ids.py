"""The ids that this instance has seen. They only find mistakes: what an id means is in the ledger."""

from hashlib import sha256
from typing import Final

from onceward.service.problems import ID_USED, RequestRefused

_MOST: Final = 65_536


class ClaimIds:
    """The last ids that won a claim here, and the keys that they won."""

    def __init__(self) -> None:
        self._seen: dict[str, bytes] = {}

    def check(self, claim_id: str, key: str) -> None:
        """Raise RequestRefused if the id won a claim on another key."""
        won = self._seen.get(claim_id)
        if won is not None and won != _short(key):
            why = "this id won a claim on another key. Nothing was claimed: make a new id of 128 random bits for each claim"
            raise RequestRefused(ID_USED, f"{key}: {why}")

    def note(self, claim_id: str, key: str) -> None:
        """Note that the id has won the key."""
        self._seen[claim_id] = _short(key)
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]


def _short(key: str) -> bytes:
    return sha256(key.encode()).digest()[:8]
