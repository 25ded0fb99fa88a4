"""Facts about a ledger and the findings from them, for ``onceward doctor``."""

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from onceward.errors import OncewardError
from onceward.stores.contract import Store

T = TypeVar("T")
Level = Literal["error", "warning", "unknown", "skipped", "ok"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "unknown", "skipped", "ok")


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        level: "error" (sooner or later messages are lost or effects doubled), "warning" or "ok". "unknown": a setting that you
            asked for could not be read. "skipped": another setting could not be read.
        check: what was checked, in a word or two.
        says: what was found.
        why: the consequence; "" when it is ok.
        fix: what you should do.
        source: the document that says so.
    """

    level: Level
    check: str
    says: str
    why: str = ""
    fix: str = ""
    source: str = ""


class Inspected(Protocol):
    """The facts about one ledger."""

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host can use it."""

    def findings(self) -> Iterator[Finding]:
        """Yield what the facts mean. Does no I/O."""


class Gaps:
    """Collects what could not be checked, as ``findings``."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def read(self, check: str, look: Callable[[], T], *, is_needed: bool = True) -> T | None:
        """Return what ``look()`` returns, or note a gap and return None if it fails."""
        try:
            return look()
        except OncewardError as error:
            self.note(check, str(error), "", is_needed=is_needed)
        return None

    def note(self, check: str, says: str, fix: str, *, is_needed: bool) -> None:
        """Note a gap: "unknown" if the caller asked for it by name, else "skipped". It is never "ok"."""
        self.findings.append(Finding("unknown" if is_needed else "skipped", check, says, "it was not looked at", fix))


class InMemory:
    """The facts about a ledger in memory (:data:`onceward.stores.capabilities.INSPECT`)."""

    is_local = True

    def __init__(self, store: Store) -> None:
        self.url = store.url

    def findings(self) -> Iterator[Finding]:
        yield Finding(
            "error",
            "ledger",
            f"{self.url} is gone with its process, and no other process sees it",
            "after a restart everything that was done can be done again",
            "give a ledger in a file or in DynamoDB",
        )
