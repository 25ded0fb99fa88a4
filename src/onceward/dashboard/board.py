"""What the pages of one dashboard share."""

from typing import NamedTuple, cast

from starlette.requests import Request

from onceward.dashboard.access import ANYBODY, Access, Visitor, WrongTokens
from onceward.dashboard.rendering import Renderer
from onceward.dashboard.sampler import Sampler
from onceward.stores.ledger import Ledger


class Board(NamedTuple):
    """The ledger, its counts, the settings and the templates, and the wrong tokens of the last minute."""

    ledger: Ledger
    sampler: Sampler
    access: Access
    renderer: Renderer
    hides_results: bool
    wrong: WrongTokens


def board_of(request: Request) -> Board:
    """Return the board of the dashboard that got a request."""
    return cast("Board", request.app.state.board)


def visitor_of(request: Request) -> Visitor:
    """Return who sent a request."""
    return getattr(request.state, "visitor", None) or ANYBODY
