"""The chain of a key: the keys whose messages led to it, and those that its messages led to, across ledgers."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from onceward.core.drivers import drive
from onceward.core.origin import CallOrigin, read_origin
from onceward.core.record import Record
from onceward.core.selections import ChainOf
from onceward.stores.contract import NoIndex, NotFound
from onceward.stores.ledger import Ledger
from onceward.stores.ledger_reader import PAGE

LONGEST: Final = 1000  # keys of a chain, unless you ask for more


class ChainLink(NamedTuple):
    """A record of a chain, the time at its store, and its ledger."""

    record: Record
    now: float
    ledger: Ledger


class ChainNode(NamedTuple):
    """A key of a chain: its records, one for each ledger that has it, and the keys that its messages led to.

    Without a record it is known only by name: its record has expired or was cleared, or is in another ledger.
    """

    key: str
    links: list[ChainLink]
    children: "list[ChainNode]"


class KeyChain(NamedTuple):
    """The chain of a key.

    Attributes:
        tops: where it begins; one node, unless its records contradict each other.
        unread: the ledgers that find nothing by origin without being read as a whole, which nobody asked for.
        cut: whether there are more keys.
    """

    tops: list[ChainNode]
    unread: list[Ledger]
    cut: bool


def chain_of(key: str, ledgers: Sequence[Ledger], *, scan: bool = False, limit: int = LONGEST) -> KeyChain:
    """Return the chain of ``key``.

    Args:
        key: a key of one of the ledgers.
        ledgers: where to look.
        scan: whether to read a ledger as a whole if it has no index by origin.
        limit: the most keys.

    Raises:
        NotFound: none of the ledgers has the key.
        StoreError: a ledger cannot be reached.
    """
    return _Search(key, ledgers, scan=scan, limit=limit).chain()


class _Search:
    """One search. ``_links`` has each key that was met, with its records."""

    def __init__(self, key: str, ledgers: Sequence[Ledger], *, scan: bool, limit: int) -> None:
        self._key, self._ledgers, self._scan, self._limit = key, ledgers, scan, limit
        self._links: dict[str, list[ChainLink]] = {}
        self._unread: list[Ledger] = []
        self._cut = False

    def chain(self) -> KeyChain:
        if not self._load(self._key):
            urls = ", ".join(ledger.store.url for ledger in self._ledgers)
            raise NotFound(f"{self._key}: no such key in {urls}; `onceward ls` shows those there are")
        roots = {self._key, *(came.root for came in self._origins(self._key))}
        for ledger in self._ledgers:
            for root in sorted(roots):
                self._descend(ledger, root)
        self._climb()
        return KeyChain(self._tops(), self._unread, self._cut)

    def _load(self, key: str) -> list[ChainLink]:
        """Look for a key in all ledgers."""
        links = self._links.setdefault(key, [])
        if len(self._links) > self._limit:
            self._cut = True
            return links
        for ledger in self._ledgers:
            try:
                record, now = ledger.show(key)
            except NotFound:
                continue
            links.append(ChainLink(record, now, ledger))
        return links

    def _descend(self, ledger: Ledger, root: str) -> None:
        """Note the records of a ledger whose chain begins at ``root``."""
        after, is_more = None, True
        while is_more:
            try:
                page = drive(ledger.store.select(ChainOf(root, self._scan), after, PAGE), ledger.store)
            except NoIndex:
                if ledger not in self._unread:
                    self._unread.append(ledger)
                return
            for record in page.records:
                came = read_origin(record.origin)
                links = self._links.get(record.key, [])
                if came is None or came.root != root or any(link.ledger is ledger for link in links):
                    continue
                if record.key not in self._links and len(self._links) >= self._limit:
                    self._cut = True
                    return
                self._links.setdefault(record.key, []).append(ChainLink(record, page.now, ledger))
            after, is_more = page.next, page.next is not None

    def _climb(self) -> None:
        """Look for the parents that were not met."""
        todo = list(self._links)
        while todo and not self._cut:
            for came in self._origins(todo.pop()):
                for key in (came.parent, came.root):
                    if key not in self._links:
                        self._load(key)
                        todo.append(key)

    def _origins(self, key: str) -> list[CallOrigin]:
        links = self._links.get(key, [])
        return [came for link in links if (came := read_origin(link.record.origin)) is not None]

    def _tops(self) -> list[ChainNode]:
        """Return the keys as trees, each key once."""
        parents: dict[str, str] = {}
        for key in self._links:
            for came in self._origins(key):
                parents.setdefault(key, came.parent)
                if came.parent in self._links and not self._links[came.parent]:  # known by name only
                    parents.setdefault(came.parent, came.root)
        below: dict[str, list[str]] = {}
        for key in sorted(self._links, key=self._claimed):
            if parents.get(key, key) != key and parents[key] in self._links:
                below.setdefault(parents[key], []).append(key)
        placed: set[str] = set()
        inner = {key for keys in below.values() for key in keys}
        # Records can be in a circle only if somebody has forged a header. Then no key of it is a top: begin anywhere.
        order = [*(key for key in self._links if key not in inner), self._key, *self._links]
        return [self._tree(key, below, placed) for key in order if key not in placed]

    def _tree(self, top: str, below: dict[str, list[str]], placed: set[str]) -> ChainNode:
        placed.add(top)
        node = ChainNode(top, self._links[top], [])
        todo = [node]
        while todo:  # a chain can be deeper than Python's recursion
            parent = todo.pop()
            for key in below.get(parent.key, ()):
                if key not in placed:
                    placed.add(key)
                    parent.children.append(ChainNode(key, self._links[key], []))
            todo.extend(parent.children)
        return node

    def _claimed(self, key: str) -> tuple[float, str]:
        return min((link.record.created_at for link in self._links[key]), default=0.0), key
