"""What the pages of one dashboard share."""

from collections import deque
from typing import NamedTuple, cast

from starlette.requests import Request

from onceward.dashboard.access import ANYBODY, Access, Visitor
from onceward.dashboard.rendering import Renderer
from onceward.dashboard.sampler import Sampler
from onceward.stores.ledger import Ledger


class Board(NamedTuple):
    """The ledger, its counts, the settings and the templates, and when somebody gave a wrong token."""

    ledger: Ledger
    sampler: Sampler
    access: Access
    renderer: Renderer
    hides_results: bool
    wrong: deque[float]


def board_of(request: Request) -> Board:
    """Return the board of the dashboard that got a request."""
    return cast("Board", request.app.state.board)


def visitor_of(request: Request) -> Visitor:
    """Return who sent a request."""
    return getattr(request.state, "visitor", None) or ANYBODY
