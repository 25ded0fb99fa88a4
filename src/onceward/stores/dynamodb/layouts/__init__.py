"""The layouts of tables that other systems made, by the name that a URL gives them."""

import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED, Record
from onceward.stores.dynamodb.items import Item, Layout, Value
from onceward.stores.dynamodb.layouts.beside import ESCAPE, Beside, is_plain, key_of_text, seconds, unquoted, whole

_NAMED = re.compile(r"\{([^{}]+):key\}$")
_WORDS: Final = {
    IN_PROGRESS: ("IN_PROGRESS", "INPROGRESS", "PROCESSING", "PENDING", "STARTED"),
    COMPLETED: ("COMPLETED", "COMPLETE", "DONE", "SUCCESS", "SUCCEEDED", "PROCESSED"),
    RELEASED: ("FAILED", "FAILURE", "ERROR"),
}


class Plain(Beside):
    """The table of the articles: ``id``, ``status``, ``expiry`` (seconds, for the TTL) and ``result``.

    Its programs are sure to know two statuses. They see COMPLETED for a record whose result is JSON, and IN_PROGRESS for
    every other record, until it expires. ``expiry`` is never the end of a lease: DynamoDB deletes an item whose expiry has
    passed, and a lapsed or parked record must stay.

    The arguments are those of :class:`Beside`. With ``id={NAME:key}``, keys of the namespace NAME are stored without it, for a
    table whose ids are the bare keys. ``names`` can also have words for the two statuses: ``{"IN_PROGRESS": "PROCESSING",
    "COMPLETED": "DONE"}``.
    """

    def __init__(
        self, partition: str = "id={key}", sort: str | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        given = dict(names or {})
        self._words = {status: given.pop(status, status) for status in (IN_PROGRESS, COMPLETED)}
        templates = [partition, *([] if sort is None else [sort])]
        named = [match for text in templates if (match := _NAMED.search(text))]
        self._name = named[0][1] if named else None
        partition, *rest = (_NAMED.sub("{key}", text) for text in templates)
        super().__init__(partition, rest[0] if rest else None, given, ("status", "expiry", "result"))
        self.means = {
            spelt: status
            for status, words in _WORDS.items()
            for word in words
            for spelt in (word, word.lower(), word.title(), word.replace("_", "-"), word.replace("_", "-").lower())
        } | {word: status for status, word in self._words.items()}
        self.statuses = tuple(self.means)

    def shown(self, record: Record) -> Item:
        word = self._words[COMPLETED if is_plain(record) else IN_PROGRESS]
        return {self.status: {"S": word}, self.expiry: {"N": str(whole(record.expires_at))}}

    def id_of(self, key: str) -> str:
        """Return the key without the layout's namespace; a key of another namespace gets a colon in front."""
        if self._name is None:
            return key
        head, colon, rest = key.partition(":")
        if colon and head == self._name:
            text = unquoted(rest)
            if text and not text.startswith(ESCAPE) and self.key_of(text) == key:
                return text
        return ESCAPE + key

    def key_of(self, text: str) -> str:
        if self._name is None:
            return text
        return text[1:] if text.startswith(ESCAPE) else key_of_text(self._name, text)

    def starts(self, prefix: str) -> tuple[str, ...]:
        if self._name is None:
            return (prefix,)
        own = f"{self._name}:"
        return ("",) if own.startswith(prefix) or prefix.startswith(own) else (ESCAPE + prefix,)


_HASHED = re.compile(r"([^:].*)#([0-9a-f]{32,128})", re.DOTALL).fullmatch  # the shortest is MD5's
_UNFIT: Final = re.compile(r"[%:\s\x00-\x1f\x7f]")  # what no name in the ledger has, and our sign for it
_MILLISECOND: Final = 0.001


class Powertools(Beside):
    """The table of Powertools for Python's ``DynamoDBPersistenceLayer``: ``id``, ``status``, ``expiration``, ``in_progress_expiration``, ``data``, ``validation``.

    What Powertools does with an item (its ``utilities/idempotency/persistence/dynamodb.py`` and ``base.py``, release 3):

    - It claims by putting the whole item. It does so if there is no item, or ``expiration`` has passed, or ``status`` is
      INPROGRESS and ``in_progress_expiration`` has passed. Without that number, an INPROGRESS item is held until ``expiration``.
    - It completes with an unconditional update of ``data``, ``expiration`` and ``status``. Other attributes stay.
    - When its function raises, it deletes the item unconditionally.
    - It replays any COMPLETED item, reads ``data`` as JSON text, and needs ``expiration``.

    =============================  ==========  ===========================================================
    record                         ``status``  ``in_progress_expiration``
    =============================  ==========  ===========================================================
    IN_PROGRESS                    INPROGRESS  the end of the lease: Powertools may take over then
    RELEASED                       INPROGRESS  0: Powertools may take over at once
    PARKED                         INPROGRESS  the year 9999
    COMPLETED, its result is JSON  COMPLETED   none
    COMPLETED, no such result      INPROGRESS  the record's expiry: Powertools must neither replay nor run it
    =============================  ==========  ===========================================================

    ``validation`` is Powertools' own hash of a payload. Each write of ours removes it, because it is of an earlier claim's.

    The arguments are those of :class:`Beside`. If Powertools has a ``sort_key_attr``, ``partition`` is the static value, as in
    ``id=idempotency#my-function``, and ``sort`` that attribute, as in ``sk={key}``.
    """

    means: Mapping[str, str] = {"INPROGRESS": IN_PROGRESS, "COMPLETED": COMPLETED}
    statuses = tuple(means)

    def __init__(
        self, partition: str = "id={key}", sort: str | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        theirs = ("status", "expiration", "data", "in_progress_expiration", "validation")
        super().__init__(partition, sort, names, theirs)
        self._lapse = self.theirs["in_progress_expiration"]

    def shown(self, record: Record) -> Item:
        expiry = whole(record.expires_at)
        item: Item = {self.status: {"S": "COMPLETED"}, self.expiry: {"N": str(expiry)}}
        if not is_plain(record):
            held = {IN_PROGRESS: math.ceil(record.lease_until / _MILLISECOND), RELEASED: 0}
            item[self.status] = {"S": "INPROGRESS"}
            item[self._lapse] = {"N": str(held.get(record.status, expiry * 1000))}
        return item

    def lease_of(self, item: Mapping[str, Value]) -> tuple[float, float | None]:
        lapse = seconds(item.get(self._lapse), _MILLISECOND)
        return super().lease_of(item) if lapse is None else (lapse, seconds(item.get(self.expiry)))

    def id_of(self, key: str) -> str:
        """Return ``name#hash`` for the key ``name:hash``, and another key unchanged, with a colon in front if need be."""
        name, _, form = key.partition(":")
        text = unquoted(form)  # a hash of digits only is quoted in a key
        for made in (f"{unquote(name)}#{text}", key):
            if self.key_of(made) == key:
                return made
        return ESCAPE + key

    def key_of(self, text: str) -> str:
        if match := _HASHED(text):
            return key_of_text(fit(match[1]), match[2])
        return text.removeprefix(ESCAPE)

    def starts(self, prefix: str) -> tuple[str, ...]:
        name = prefix.partition(":")[0].partition("%")[0]
        return (name, ESCAPE + name) if name else ("",)


def fit(name: str) -> str:
    """Return a function's name in a form that a guard's name can have."""
    return _UNFIT.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


PRESETS: Final = {"powertools": Powertools, "plain": Plain}


def preset(
    name: str, partition: str | None = None, sort: str | None = None, names: Mapping[str, str] | None = None
) -> Layout:
    """Return the layout of another system's table: "powertools" or "plain" (``docs/how-to/migrate.md``).

    ``names`` are the table's names for attributes, by the names that they usually have: ``{"expiration": "ttl"}``.

    Raises:
        ValueError: there is no such preset, or the table's keys or names are not valid.
    """
    if name not in PRESETS:
        raise ValueError(f"preset={name!r}: there are {' and '.join(PRESETS)}")
    return PRESETS[name](partition or "id={key}", sort, names)
