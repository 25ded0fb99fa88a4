"""What ``on_lapse`` of a step can answer."""

from typing import Final, NamedTuple


class Made(NamedTuple):
    """An earlier attempt has made the step, with this result."""

    result: object = None


class NotMade:
    """The type of :data:`NOT_MADE`."""

    def __repr__(self) -> str:
        return "onceward.NOT_MADE"


NOT_MADE: Final = NotMade()  # no earlier attempt has made the step, so it runs
