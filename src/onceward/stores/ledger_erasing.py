"""Erasing what records hold of a person, while their keys go on answering duplicates."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from onceward.core import protocol
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.policy import Seal
from onceward.core.record import COMPLETED, Elsewhere, Record, Write
from onceward.core.steps import fetched
from onceward.errors import OncewardError, StoreError, UnknownNeed
from onceward.keys.ledger_keys import kept_key, may_be_kept
from onceward.results import sealing
from onceward.results.codec import ENVELOPE
from onceward.results.message_entries import opened_message, unsent_of
from onceward.results.outcomes import SEALED, describe
from onceward.results.step_entries import Entry, entries_of, text_of
from onceward.results.values import MARKS as _MARKS
from onceward.stores import audit
from onceward.stores.contract import NotFound
from onceward.stores.ledger_reader import LedgerReader, delete_kept

WHY: Final = "it was erased"
BLANK: Final = "(erased)"  # in the place of a text; of anything else it is null
_DECODER: Final = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))  # 10.00 stays 10.00


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


class _Gone(OncewardError):
    """The record holds nothing of the person any more."""


class LedgerErasing(LedgerReader):
    """The part of :class:`onceward.stores.ledger.Ledger` that erases."""

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
            path: names with dots between, as in ``customer.email``; ``*`` is any name. Lists are searched, and texts that are
                JSON, such as the body of an HTTP response.
            value: the value there, as text.
            who: who erases it, for the audit.
            blank: the paths of what to erase in such a record, together with ``path``. A text becomes "(erased)", anything else
                null. Without any, erase the results and the arguments as a whole. Duplicates then get ResultUnavailable.
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
        steps: set[str] = set()  # the keys of steps' large results, which belong to the record of their handler
        later: list[Record] = []
        for page in self.pages(prefix):
            yield from (Erased(one.key, f"it cannot be read: {one.why}") for one in page.damaged)
            for record in page.records:
                steps.update(kept_key(record.key, one.name, one.kept) for one in _kept_steps(record))
                if may_be_kept(record.key):
                    later.append(record)
                elif not record.key.startswith(f"{audit.NAMESPACE}:"):
                    yield from self._tried(record, search, who)
        for record in later:
            if record.key not in steps:
                yield from self._tried(record, search, who, orphan=not prefix)

    def _tried(self, record: Record, search: "_Search", who: str, *, orphan: bool = True) -> Iterator[Erased]:
        try:
            if not search.finds(self._texts(record), record.unsent):
                return
            if not orphan:
                raise _Left("it may be the result of another key's step: erase without a prefix")
            if self._erase(record.key, search, who):
                yield Erased(record.key)
        except StoreError:
            raise
        except NotFound:  # it was cleared, or has expired
            return
        except (_Left, UnknownNeed) as left:
            yield Erased(record.key, str(left))
        except (OncewardError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            yield Erased(record.key, f"it cannot be read: {describe(error)}. Nobody knows whose it is")

    def _erase(self, key: str, search: "_Search", who: str) -> bool:
        """Return whether it held something of the person when it was written."""
        before: list[Record] = []

        def write(record: Record, now: float) -> Write:
            before[:] = [record]
            texts = self._texts(record)
            if not search.finds(texts, record.unsent):  # another claim has its key now
                raise _Gone
            if record.status != COMPLETED:
                raise _Left(f"it is {record.status}, and may run again: settle, clear or finish it, and erase again")
            if record.unsent is not None:
                raise _Left("it has unsent messages: let a relay send them, or drop them, and erase again")
            return protocol.erased(record, now, **search.blanked(record, texts[0]))

        detail = " ".join(search.paths) or f"{search.path}: everything"
        entry = audit.begin(self, audit.Deed(key, "erase", who, "a request to erase", COMPLETED, detail))
        try:
            self._change(key, write, "")
        except _Gone:
            audit.end(self, entry, "nothing: it has changed")
            return False
        except OncewardError as error:
            audit.end(self, entry, f"failed: {error}")
            raise
        delete_kept(self.store, before[0])
        audit.end(self, entry, "done")
        if type(before[0].result) is Elsewhere:
            raise _Left(f"its record is erased; delete also its old result at {before[0].result}")
        return True

    def _texts(self, record: Record) -> list[str | None]:
        """Return the texts of a record: its result first, its arguments, and the results of its steps."""
        whole = drive(fetched(record, boottime), self.store) if type(record.result) is Elsewhere else record
        texts = [whole.result, record.input, *(one.text for one in entries_of(record.steps).values())]
        for step in _kept_steps(record):
            held = drive(self.store.load(kept_key(record.key, step.name, step.kept)), self.store).record
            texts.append(held and held.result)
        return texts


def _kept_steps(record: Record) -> list[Entry]:
    try:
        return [one for one in entries_of(record.steps).values() if one.kept]
    except ValueError:
        return []


class _Search:
    """What to look for in a record, and what to put in its place."""

    def __init__(self, path: str, value: str, blank: Sequence[str], seal: Seal | None) -> None:
        self.path, self.paths = path, [path, *blank] if blank else []
        self._value, self._seal = value, seal

    def finds(self, texts: Sequence[str | None], unsent: str | None) -> bool:
        """Return whether the value is at the path in one of the texts, or in a message that is not sent."""
        found: list[bool] = []

        def look(value: Any) -> Any:
            found.extend(self._value == one for one in _said(value))
            return value

        for text in (*(self._opened(one) for one in texts if one is not None), *self._bodies(unsent)):
            text.visit(self.path, look)
        return any(found)

    def blanked(self, record: Record, result: str | None) -> dict[str, str | None]:
        """Return the fields of a completed record, which has no arguments, without what is erased."""
        if not self.paths:
            return {"result": None, "error": WHY, "steps": None}
        steps = entries_of(record.steps)
        for name, step in steps.items():
            if step.text is not None:
                raw = msgspec.Raw((self._without(step.text) or "").encode())
                steps[name] = msgspec.structs.replace(step, result=raw)
        return {
            "result": self._without(result),
            "error": record.error and WHY,
            "steps": text_of(steps) if steps else record.steps,
        }

    def _without(self, text: str | None) -> str | None:
        if text is None:
            return None
        opened = self._opened(text)
        for path in self.paths:
            opened.visit(path, _blank)
        return sealing.sealed_whole(self._seal, opened.text) if self._seal and text.startswith(SEALED) else opened.text

    def _opened(self, text: str) -> "_Text":
        try:
            return _Text(sealing.opened(self._seal, text) if text.startswith(SEALED) else text, self._value)
        except sealing.NotOpened as error:
            raise _Left(f"{error}; nobody knows whose it is") from error

    def _bodies(self, unsent: str | None) -> list["_Text"]:
        try:
            messages = () if unsent is None else unsent_of(unsent).messages
            bodies = [opened_message(one, self._seal)[0] for one in messages]
        except sealing.NotOpened as error:
            raise _Left(f"it has an unsent message: {error}; nobody knows whose it is") from error
        return [_Text(msgspec.json.encode(body).decode(), self._value) for body in bodies]


class _Text:
    """A text of JSON. It stays as it is, to the byte, unless something in it is replaced; then numbers stay as they are written."""

    def __init__(self, text: str, wanted: str) -> None:
        self.text, self._wanted = text, wanted
        self._marked = text.startswith(ENVELOPE)

    def visit(self, path: str, see: Callable[[Any], Any]) -> None:
        """Replace what stands at the path by what ``see`` returns for it; the same object leaves it."""
        whole = [_DECODER.decode(self.text)]
        if self._visit(whole, 0, path.split("."), see):
            self.text = msgspec.json.encode(whole[0]).decode()

    def _visit(self, parent: Any, at: Any, names: Sequence[str], see: Callable[[Any], Any]) -> bool:
        """Visit what the parent has in one place, and return whether something was replaced."""
        value = parent[at]
        if not names or isinstance(value, str):
            parent[at] = self._in_text(value, names, see) if names else see(value)
            return parent[at] is not value
        places: list[tuple[Any, Any, Sequence[str]]] = []
        if isinstance(value, list):
            places = [(value, place, names) for place in range(len(value))]
        elif isinstance(value, dict):
            mark, rest = next((name for name in value if self._marked and name in _MARKS), None), names[1:]
            if mark is None:
                places = [(value, name, rest) for name in value if names[0] in {"*", name}]
            elif mark == "$dict":
                places = [(pair, 1, rest) for pair in value[mark] if names[0] in ("*", pair[0])]
            elif (
                mark == "$namedtuple"
            ):  # stored without the names of its fields, so only the wanted value itself is one of them
                see = self._only(see)
                places = [(value["items"], place, rest) for place in range(len(value["items"]))]
            else:  # our own marks add no names
                inner = value.get("raised", value)
                places = [(inner, name, names) for name in inner]
        replaced = [self._visit(*place, see) for place in places]
        return any(replaced)

    def _only(self, see: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: see(value) if self._wanted in _said(value) else value

    def _in_text(self, value: str, names: Sequence[str], see: Callable[[Any], Any]) -> str:
        """Look into a text that is JSON itself, such as the body of an HTTP response."""
        if not value.lstrip().startswith(("{", "[")):
            return value
        inner = _Text(value, self._wanted)
        try:
            inner.visit(".".join(names), see)
        except msgspec.DecodeError:
            return value  # it is no JSON
        return inner.text


def _blank(value: Any) -> Any:
    return value if value is None else BLANK if isinstance(value, str) else None


def _said(value: Any) -> list[str]:
    """Return a value as texts: those of a list's items, and what a mark such as ``$uuid`` stands before."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for one in value for text in _said(one)]
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _MARKS:
        return _said(next(iter(value.values())))
    return [msgspec.json.encode(value).decode()]
