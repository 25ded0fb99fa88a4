"""One attempt at one line."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from onceward.claim.claim import Claim
from onceward.pipe.jobs import LineJob
from onceward.pipe.output import Output


class Interrupted(BaseException):
    """The handler was killed; its key stays claimed to the end of its lease."""


@dataclass
class LineAttempt:
    """What becomes of a job."""

    job: LineJob
    claim: Claim | None = None  # the claim of the handler; None until the handler runs
    output: Output | None = None  # all that it wrote or returned, also what is too large to record
    errors: BinaryIO | None = None  # what a command wrote to its standard error
    error: BaseException | None = None  # what the handler raised
    reason: str = ""  # the error in a few words, for people
    # closes the files that a command wrote to. Close it when the outcome has been told
    files: ExitStack = field(default_factory=ExitStack)

    def failed(self, error: BaseException, reason: str = "") -> BaseException:
        """Remember and return what the handler raises."""
        self.error = error
        self.reason = reason or str(error)
        return error


class LineOutcome(NamedTuple):
    """What a line came to: ran, replayed, failed, parked, busy or malformed."""

    kind: str
    error: str | None = None
    output: Output | None = None
    errors: BinaryIO | None = None
    unstored: bool = False
    reason: str | None = None
