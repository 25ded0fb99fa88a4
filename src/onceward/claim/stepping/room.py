"""The room in a record for its steps, also for those that run side by side."""

from typing import Final

from onceward.results.step_entries import LONGEST, entries_of

_EACH: Final = 150  # characters that a step takes beside its name and its result
_LEAST: Final = 200  # what it keeps while it runs, so that a short result always has room
_SPARE: Final = 250  # characters for the reason why a result is not recorded


class Room:
    """Which steps of an attempt run, and the room that each needs.

    Attributes:
        running: the characters that each takes.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}

    def fits(self, recorded: str | None, name: str, result: int = 0) -> bool:
        """Keep room for a step that runs, with a result of so many characters. Return whether there is that much.

        Threads that ask at the same time may all be refused, but never all be served.
        """
        self.running[name] = len(name) + max(_LEAST, _EACH + result)
        needed = self.running.copy()
        if recorded is not None and len(needed) > 1:
            for entry in entries_of(recorded).values():
                if entry.done:  # its text is counted
                    needed.pop(entry.name, None)
        return len(recorded or "") + sum(needed.values()) + _SPARE <= LONGEST

    def leave(self, name: str) -> None:
        """Note that a step has ended."""
        self.running.pop(name, None)
