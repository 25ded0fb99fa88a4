"""The room in a record for its steps, also for those that run side by side."""

from typing import Final

from onceward.results.outcomes import size_of
from onceward.results.step_entries import LONGEST, entries_of

_EACH: Final = 150  # bytes that a step takes beside its name and its result
_LEAST: Final = 400  # and what it keeps while it runs: for a short result, or for where a large one is
_SPARE: Final = 250  # bytes for the reason why a result is not recorded


class Room:
    """Which steps of an attempt run, and the room that each needs.

    Attributes:
        running: the bytes that each takes.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}

    def fits(self, recorded: str | None, name: str, result: int = 0) -> bool:
        """Keep room for a step that runs, with a result of so many bytes. Return whether there is that much.

        Threads that ask at the same time may all be refused, but never all be served.
        """
        # Some characters of a name take a byte more in the record.
        self.running[name] = 2 * size_of(name) + (_LEAST if result < _LEAST - _EACH else _EACH + result)
        needed = self.running.copy()
        if recorded is not None and len(needed) > 1:
            for other in entries_of(recorded).values():
                if other.done:  # its text is counted
                    needed.pop(other.name, None)
        return size_of(recorded or "") + sum(needed.values()) + _SPARE <= LONGEST

    def leave(self, name: str) -> None:
        """Note that a step has ended."""
        self.running.pop(name, None)
