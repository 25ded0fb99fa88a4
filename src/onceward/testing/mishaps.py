"""What can happen at the points of a crash test: each exchange with the ledger as the test sees it, and its mishaps."""

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from onceward.core.drivers import Steps, mapped
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Write
from onceward.errors import StoreError
from onceward.results.step_entries import entries_of

T = TypeVar("T")


def transient(message: str) -> StoreError:
    """Return the error that a store raises when a retry may help."""
    return StoreError(message, transient=True)


class Ask(NamedTuple):
    """One exchange, as a plan sees it: its number (from 1), the verb, its arguments and the store's own request."""

    number: int
    verb: str
    arguments: tuple[object, ...]
    request: object

    @property
    def writes(self) -> list[Write]:
        """The verb's writes; empty if it only reads."""
        lists = [argument if type(argument) in {list, tuple} else [argument] for argument in self.arguments]
        members = [member for one in lists for member in cast("Sequence[object]", one)]
        writes = [member[0] if type(member) is tuple else member for member in members]
        return [write for write in writes if isinstance(write, Write)]


def tagging(verb: str) -> Any:
    """Return a verb of a store: that of the store ``_behind()`` it, each request tagged with where it comes from."""

    def call(self: Any, *arguments: object) -> Steps[object]:
        return tagged(verb, arguments, getattr(self._behind(), verb)(*arguments))

    return call


def tagged(verb: str, arguments: tuple[object, ...], steps: Steps[T]) -> Steps[T]:
    """Run a verb's steps, and yield each request as an :class:`Ask`."""
    return mapped(steps, partial(Ask, 0, verb, arguments), Exception)  # a session's own steps decide what it means


_ENDS: Final = {COMPLETED: "the record of the result", RELEASED: "giving the key back", PARKED: "parking the key"}


class Mishap(Enum):
    """What happens to the worker at a point."""

    KILLED_BEFORE = "the worker is killed before {}"
    KILLED_AFTER = "the worker is killed right after {}"
    REQUEST_LOST = "{} fails: the request is lost"
    REPLY_LOST = "{} is made, but its reply is lost"
    LEDGER_GONE = "the ledger is out of reach from {} on"
    PAUSED = "the worker is paused before {} for longer than its lease, and another one gets the delivery"


AT_EXCHANGE: Final = tuple(Mishap)
# Before an effect is right after the point before it, where the worker is killed as well.
AT_EFFECT: Final = (Mishap.KILLED_AFTER, Mishap.REQUEST_LOST, Mishap.REPLY_LOST, Mishap.PAUSED)


# Nobody else can do anything meanwhile: the transaction is open, and in SQLite it has the file.
IN_TRANSACTION: Final = (Mishap.KILLED_BEFORE, Mishap.KILLED_AFTER)


class Point(NamedTuple):
    """One point of a run: an exchange with the ledger, or a call of a downstream; and what can happen there."""

    label: str
    mishaps: tuple[Mishap, ...]


def label_of(ask: Ask) -> str:
    """Return what an exchange is for, in words."""
    writes = ask.writes
    if ask.verb == "commit":
        return f"the transaction's {str(ask.request).partition(' ')[0]}"
    if not writes:
        return f"the ledger's {ask.verb} of {ask.arguments[0]}"
    if len(writes) > 1:
        return f"{_done(writes[0], None)} of {len(writes)} keys"
    seen = ask.arguments[-1] if ask.verb == "swap" else None
    if ask.verb == "swap_many":
        ((_, seen), *_) = cast("list[tuple[Write, Record]]", ask.arguments[0])
    return f"{_done(writes[0], seen if isinstance(seen, Record) else None)} of {writes[0].key}"


def _done(write: Write, seen: Record | None) -> str:
    if write.status != IN_PROGRESS:
        return _ENDS.get(write.status, f"the write of {write.status}")
    if seen is None:
        return "the claim"
    if seen.owner != write.owner:
        return "the takeover" if seen.status == IN_PROGRESS else "the new claim"
    if write.steps == seen.steps:
        return "the renewal"
    new = [entry for name, entry in entries_of(write.steps).items() if entries_of(seen.steps).get(name) != entry]
    if not new:
        return "the change of the steps"
    return f"the {'record' if new[0].done else 'note before the'} of the step {new[0].name!r}".replace("the of", "of")
