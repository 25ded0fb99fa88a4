"""What a look at a ledger tells, for ``onceward doctor``: facts, and the findings that they make."""

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
        level: "error" (messages are lost, or effects doubled, sooner or later), "warning" or "ok"; "unknown" when a setting that
            was asked for could not be read, "skipped" when one that nobody asked for could not.
        check: what was looked at, in a word or two.
        says: what was found.
        why: what happens because of it; "" when it is ok.
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
        """Yield what they mean. No I/O."""


class Unanswered(OncewardError):
    """The service at this endpoint does not know the question."""


class Gaps:
    """What could not be looked at.

    Attributes:
        found: the findings that say so.
    """

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def tried(self, check: str, look: Callable[[], T], *, needed: bool = True) -> T | None:
        """Return what ``look()`` returns, or None when it fails."""
        try:
            return look()
        except Unanswered as error:
            self.note(check, str(error), "", needed=False)
        except OncewardError as error:
            self.note(check, str(error), "", needed=needed)
        return None

    def note(self, check: str, says: str, fix: str, *, needed: bool) -> None:
        """Note a gap: "unknown" if the caller asked for it by name, else "skipped"; it is never "ok"."""
        self.found.append(Finding("unknown" if needed else "skipped", check, says, "it was not looked at", fix))


class InMemory:
    """The facts about a ledger in memory (:data:`onceward.stores.capabilities.INSPECT`)."""

    is_local = True

    def __init__(self, store: Store) -> None:
        self.url = store.url

    def findings(self) -> Iterator[Finding]:
        """As :class:`Inspected`."""
        yield Finding(
            "error",
            "ledger",
            f"{self.url} is gone with its process, and no other process sees it",
            "after a restart everything that was done can be done again",
            "give a ledger in a file or in DynamoDB",
        )
