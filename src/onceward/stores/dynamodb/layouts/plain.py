"""The layout of the idempotency table that many articles about DynamoDB describe."""

import re
from collections.abc import Mapping
from typing import Final

from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED, Record
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.layouts.beside import ESCAPE, Beside, is_plain, key_of_text, unquoted, whole

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
