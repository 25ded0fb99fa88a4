"""What steps and sinks are, and the kit that they are built with: it imports, and notes mistakes with their places.

A new step or sink is a class, and a line in ``STEPS`` or ``SINKS``. What a source is, ``flow.py`` says.
"""

import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from onceward.once import Once
from onceward.outbox.targets import OutboxMessage, open_target
from onceward.pipe.functions import imported
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepAction
from onceward.pipelines.marks import Marked, Mistake, Position
from onceward.pipelines.model import PipelineFile
from onceward.pipelines.settings import Settings, SinkChoice, StepChoice, StepList
from onceward.stores import url_parts

FAILED_HEADERS: Final = ("onceward-status", "onceward-reason")  # of a dead letter
Hook = Callable[[], object]
Field = str | tuple[str | int, ...]


def absolute(url: str, folder: Path) -> str:
    """Return a URL whose SQLite file does not depend on the current folder; raises ValueError if it is not valid."""
    parts = url_parts(url)[0]
    path = parts.path.removeprefix("/")
    if parts.scheme != "sqlite" or parts.netloc or path in {"", ":memory:"}:
        return url
    return parts._replace(path=f"/{quote((folder / unquote(path)).as_posix(), safe='/:')}").geturl()


class Built(msgspec.Struct, eq=False):
    """What is noted while a pipeline is built.

    Attributes:
        ledger: the URL of the ledger, if it was opened by one.
        chain: builds a list of steps.
        sink: builds a sink.
        mistakes: all mistakes and warnings.
        titles: the names of effects and sinks, each with its place.
        parking: the names of effects with ``on_lapse: park``.
        lease: seconds, the longest of all guards.
        reserved: the name that no guard can have, because the source has keys there.
        closing: called at the end, the last first.
        least_retention: seconds that records stay at least.
    """

    once: Once
    model: PipelineFile
    folder: Path
    ledger: str | None
    chain: Callable[["Kit", StepList], StepAction]
    sink: Callable[["Kit", SinkChoice], StepAction]
    mistakes: list[Mistake] = []
    titles: dict[str, Position] = {}
    parking: set[str] = set()
    lease: float = 60.0
    guards: dict[str, Position] = {}
    reserved: str | None = None
    closing: list[Hook] = []
    least_retention: float = 0.0


class Kit(msgspec.Struct, eq=False):
    """What one part is built with. The ``field`` arguments of its methods name a field of this part's settings.

    Attributes:
        built: what is noted.
        marked: the part in the file.
        guarded: whether a guard of the file stands around this part.
        within: the title of the recorded step that this part is in, or "".
        around: the title of the recorded step around the guard that this part is in, or "".
        named: the ``name:`` beside the type of a step.
        records: whether the engine records what this part does.
    """

    built: Built
    marked: Marked
    guarded: bool
    within: str = ""
    around: str = ""
    named: str | None = None
    records: bool = True

    @property
    def once(self) -> "Once":
        """The ledger of the file."""
        return self.built.once

    @property
    def folder(self) -> Path:
        """Where the file is. Relative paths in it begin here."""
        return self.built.folder

    def of(self, marked: Marked) -> "Kit":
        """Return the kit of another part of the file."""
        return msgspec.structs.replace(self, marked=marked)

    # --- mistakes -----------------------------------------------------------------------------------------------------

    def mistake(self, field: Field, text: str, *, deep: bool = False, is_warning: bool = False) -> None:
        """Note a mistake. The pipeline will not run. ``deep`` is whether the text can quote all that is in a mapping."""
        told = self.marked.told(text, *_path(field), deep=deep)
        self.built.mistakes.append(Mistake(self._place(field), told, is_warning))

    @contextmanager
    def noting(self, field: Field, *kinds: type[Exception]) -> Iterator[None]:
        """Note an error of these kinds, by default ValueError, as a mistake."""
        refusals = kinds or (ValueError,)
        try:
            yield
        except refusals as error:
            self.mistake(field, str(error), deep=True)

    def warn(self, field: Field, text: str) -> None:
        """Note a warning."""
        self.mistake(field, text, deep=True, is_warning=True)

    def needs(self, field: Field, module: str, extra: str) -> bool:
        """Return whether a library is installed; if not, note the extra that brings it."""
        there = module in sys.modules or find_spec(module) is not None
        if not there:
            self.mistake(field, f"this needs {module}, which is not installed: pip install 'onceward[{extra}]'")
        return there

    def needs_outbox(self, field: Field) -> None:
        """Note if the ledger cannot hold messages."""
        if "outbox" not in self.once.store.capabilities:
            self.mistake(
                field, "this ledger cannot hold messages with a record (docs/reference/outbox.md): use another ledger"
            )

    # --- what the settings name ---------------------------------------------------------------------------------------

    def imported(self, field: Field, target: str) -> Any:
        """Return the function that ``module:function`` names. The module can be in the file's folder."""
        folder = str(self.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        with self.noting(field):
            return imported(target, "")
        return None

    def target(self, field: Field, address: str) -> None:
        """Check an address that gets dead letters."""
        with self.noting(field, Exception):  # a target's own check raises anything
            open_target(address).check(OutboxMessage("0" * 36, "{}", dict.fromkeys(FAILED_HEADERS, "x")))

    def chain(self, steps: StepList, **changes: bool | str) -> "StepAction":
        """Return what runs a list of steps. ``changes`` are what differs for them."""
        return self.built.chain(msgspec.structs.replace(self, **changes), steps)

    def sink(self, choice: SinkChoice) -> "StepAction":
        """Return what brings a message to a sink."""
        return self.built.sink(self.of(choice.marked), choice)

    # --- names and hooks ----------------------------------------------------------------------------------------------

    def title(self, choice: StepChoice | SinkChoice, title: str, what: str) -> str:
        """Take the name of an effect or a sink. No two may have the same."""
        field = "name" if getattr(choice.keys, "name", None) else choice.kind
        first = self.built.titles.setdefault(title, place := self._place(field))
        if first is not place:
            self.mistake(
                field,
                f"two {what} have the name {title!r}, and the record tells them apart by it: give one of them a name: "
                f"(the first is in line {first.line})",
                deep=True,
            )
        return title

    def guard_name(self, field: Field, name: str) -> str:
        """Take the name of a guard, and return the namespace of its keys."""
        if name == self.built.reserved:
            self.mistake(field, f"{name!r} names the keys of the source: give the guard another name:")
        first = self.built.guards.setdefault(name, place := self._place(field))
        if first is not place:
            self.mistake(
                field, f"two guards have the name {name!r}, and would share their keys: give one of them another name:"
            )
        return f"{self.built.model.name}.{name}"

    def closing(self, hook: Hook) -> None:
        """Have a function, or a coroutine function, called when the run ends."""
        self.built.closing.append(hook)

    def _place(self, field: Field) -> Position:
        return self.marked.place_of(*_path(field))


def _path(field: Field) -> tuple[str | int, ...]:
    return ((field,) if field else ()) if isinstance(field, str) else field


SinkAction = Callable[[PipelineMessage, "PipelineCall"], Awaitable[None]]


class PartSettings(Settings):
    """A step or a sink."""

    @property
    def title(self) -> str:
        """What names it in errors and in the record, if the file gives it no name."""
        return type(self).__name__[:-4].lower()  # without Step or Sink


class SinkSettings(PartSettings):
    """Where messages go.

    Most sinks stand on the outbox: their action is ``call.claim.send(address, message.data, key=call.step)``, and the message leaves exactly when the
    claim completes. Others return when what they wrote is durable.
    """

    @abstractmethod
    def build(self, kit: "Kit") -> SinkAction:
        """Check the settings, and return what takes a message. No request is made, and ``kit`` notes mistakes."""


class StepSettings(PartSettings):
    """A step without an effect outside. It is not recorded, so it must give the same result for the same message."""

    @abstractmethod
    def build(self, kit: "Kit") -> StepAction:
        """Check the settings, and return what does it. No request is made, and nothing is raised: ``kit`` notes mistakes."""


class EffectSettings(StepSettings):
    """A step with an effect outside. The engine records its result, so a later attempt does not make it again."""

    replaces = False  # whether its result is the new message; null then drops it

    @abstractmethod
    def build(self, kit: "Kit") -> EffectAction:
        """Check the settings, and return what makes the effect. It makes no request itself.

        If the action records itself, with call.claim under the name call.step, this says so in ``kit.records``.
        """
