"""Erasing what records hold of a person, while their keys go on answering duplicates."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from onceward.core import protocol
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.policy import Seal
from onceward.core.record import COMPLETED, Elsewhere, Record, Write
from onceward.core.steps import fetched
from onceward.errors import OncewardError, UnknownNeed
from onceward.results import sealing
from onceward.results.outcomes import SEALED
from onceward.results.step_entries import entries_of, text_of
from onceward.stores import audit
from onceward.stores.contract import Page, Store
from onceward.stores.kept_results import delete_kept

WHY: Final = "it was erased"
BLANK: Final = "(erased)"  # in the place of a text; of anything else it is null


class Erased(NamedTuple):
    """A record that holds something of the person.

    Attributes:
        key: its key in the ledger.
        left: why it was not changed, and what to do; None if what it held is erased.
    """

    key: str
    left: str | None = None


class _Left(OncewardError):
    """The record cannot be changed now."""


class LedgerErasing(ABC):
    """The part of :class:`onceward.stores.ledger.Ledger` that erases."""

    store: Store

    @abstractmethod
    def pages(self, prefix: str = "") -> Iterator[Page]:
        """Yield pages of records."""

    @abstractmethod
    def show(self, key: str) -> tuple[Record, float]:
        """Return the record of ``key`` and the store's time."""

    @abstractmethod
    def _change(self, key: str, write: Callable[[Record, float], Write | None], refusal: str) -> Record:
        """Swap the record of a key for what ``write`` returns; None refuses it."""

    def erase(
        self,
        path: str,
        value: str,
        *,
        who: str,
        blank: Sequence[str] = (),
        prefix: str = "",
        seal: Seal | None = None,
    ) -> Iterator[Erased]:
        """Erase what the ledger holds of one person, and yield each record that held something.

        It reads the whole ledger. A record is the person's if its result, its kept arguments or the result of one of its steps
        has ``value`` at ``path``. The key stays completed: its effect is never made again. The entry of the audit has the paths,
        and not the value. Keys and fingerprints stay as they are.

        Args:
            path: names with dots between, as in ``customer.email``; ``*`` is any name. Lists are looked into, and so is a text
                that is JSON, such as the body of an HTTP response.
            value: what stands there, as text.
            who: whose doing this is, for the audit.
            blank: the paths of what to erase in such a record, together with ``path``. A text becomes "(erased)", anything else
                null. None at all: erase the results and the arguments as a whole. Duplicates then get ResultUnavailable.
            prefix: only keys that begin with it.
            seal: opens what the guards have sealed, and seals it again. Without it, sealed records are reported as left.

        Raises:
            ValueError: a path is empty.
            StoreError: the store cannot be reached. What was yielded is done; erase again for the rest.
        """
        if not all(part for one in (path, *blank) for part in one.split(".")):
            raise ValueError(f"{[path, *blank]}: give paths of names with dots between, such as customer.email")
        return self._erasing(_Search(path, value, blank, seal), who, prefix)

    def _erasing(self, search: "_Search", who: str, prefix: str) -> Iterator[Erased]:
        for page in self.pages(prefix):
            yield from (Erased(one.key, f"it cannot be read: {one.why}") for one in page.damaged)
            for record in page.records:
                if record.key.startswith(f"{audit.NAMESPACE}:"):
                    continue
                try:
                    if search.finds(self._whole(record)):
                        self._erase(record.key, search, who)
                        yield Erased(record.key)
                except (_Left, UnknownNeed) as left:
                    yield Erased(record.key, str(left))

    def _erase(self, key: str, search: "_Search", who: str) -> None:
        before: list[Record] = []

        def write(record: Record, now: float) -> Write:
            before[:] = [record]
            if record.status != COMPLETED:
                raise _Left(f"it is {record.status}, and may run again: settle, clear or finish it, and erase again")
            if record.unsent is not None:
                raise _Left("it has unsent messages: let a relay send them, and erase again")
            whole = self._whole(record)
            return protocol.erased(record, now, **search.blanked(whole))

        detail = " ".join(search.paths) or f"{search.path}: everything"
        entry = audit.begin(self, audit.Deed(key, "erase", who, "a request to erase", COMPLETED, detail))
        try:
            self._change(key, write, "")
        except OncewardError as error:
            audit.end(self, entry, f"failed: {error}")
            raise
        delete_kept(self.store, before[0])
        audit.end(self, entry, "done")
        if type(before[0].result) is Elsewhere:
            raise _Left(f"its record is erased; delete also its old result at {before[0].result}")

    def _whole(self, record: Record) -> Record:
        return drive(fetched(record, boottime), self.store) if type(record.result) is Elsewhere else record


class _Search:
    """What to look for in a record, and what to put in its place."""

    def __init__(self, path: str, value: str, blank: Sequence[str], seal: Seal | None) -> None:
        self.path, self.paths = path, [path, *blank] if blank else []
        self._names, self._value, self._seal = path.split("."), value, seal

    def finds(self, record: Record) -> bool:
        return any(
            self._value == _text(inner[name])
            for text in _texts(record)
            for inner, name in _places(self._opened(text), self._names)
        )

    def blanked(self, record: Record) -> dict[str, str | None]:
        """Return the fields of a completed record, which has no arguments, without what is erased."""
        if not self.paths:
            return {"result": None, "error": WHY, "steps": None}
        steps = entries_of(record.steps)
        for name, step in steps.items():
            if step.text is not None:
                steps[name] = msgspec.structs.replace(
                    step, result=msgspec.Raw((self._without(step.text) or "").encode())
                )
        return {
            "result": self._without(record.result),
            "error": record.error and WHY,
            "steps": text_of(steps) if steps else record.steps,
        }

    def _without(self, text: str | None) -> str | None:
        if text is None:
            return None
        value = self._opened(text)
        for path in self.paths:
            for inner, name in _places(value, path.split(".")):
                inner[name] = BLANK if isinstance(inner[name], str | _Body) else None
        plain = msgspec.json.encode(_closed(value)).decode()
        return sealing.sealed_whole(self._seal, plain) if self._seal and text.startswith(SEALED) else plain

    def _opened(self, text: str) -> Any:
        try:
            return _inner(msgspec.json.decode(sealing.opened(self._seal, text) if text.startswith(SEALED) else text))
        except sealing.NotOpened as error:
            raise _Left(f"{error}; nobody knows whose it is") from error


class _Body(dict[str, Any]):
    """JSON that stands as a text in other JSON."""


def _inner(value: Any) -> Any:
    """Return a value with the texts that are JSON objects or lists read."""
    if isinstance(value, dict):
        return {name: _inner(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_inner(one) for one in value]
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            return _Body(json=_inner(msgspec.json.decode(value)))
        except msgspec.DecodeError:
            pass
    return value


def _closed(value: Any) -> Any:
    if isinstance(value, _Body):
        return msgspec.json.encode(_closed(value["json"])).decode()
    if isinstance(value, dict):
        return {name: _closed(one) for name, one in value.items()}
    return [_closed(one) for one in value] if isinstance(value, list) else value


def _places(value: Any, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Yield where a path leads, as what holds it and its name or index there. Our own marks, such as ``$object``, add no names."""
    if isinstance(value, list):
        for one in value:
            yield from _places(one, names)
    elif isinstance(value, dict):
        pairs = value.get("$dict")
        if pairs is None and (isinstance(value, _Body) or any(name.startswith("$") for name in value)):
            yield from _places(list(value.values()), names)
            return
        held = ((value, name, name) for name in value) if pairs is None else ((pair, 1, pair[0]) for pair in pairs)
        for holder, place, name in held:
            if names[0] not in {name if isinstance(name, str) else None, "*"}:
                continue
            if names[1:]:
                yield from _places(holder[place], names[1:])
            else:
                yield holder, place


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(_closed(value)).decode()


def _texts(record: Record) -> Iterator[str]:
    yield from (text for text in (record.result, record.input) if text is not None)
    yield from (step.text for step in entries_of(record.steps).values() if step.text is not None)
