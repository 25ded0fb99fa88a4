"""Who waits for a lane, what leaves together, and how a batch is carried."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from onceward.core.clock import boottime
from onceward.stores.lanes.refusals import Broken, SqlRefusal

MOST_KEYS: Final = 200  # of one batch,
MOST_BYTES: Final = 768 * 1024  # which they write at most, about: some servers take 1 MB in one request
MOST_AHEAD: Final = 4  # batches of ends in a row while a claim waits


class LaneRequest:
    """What a lane does.

    Attributes:
        kind: requests of one kind can leave together; None: it leaves alone.
        key: what it writes.
        rank: requests with a smaller one leave first.
    """

    kind: str | None = None
    key: Any = ""
    rank: int = 1

    @property
    def size(self) -> int:
        """About how many bytes it writes."""
        return 0

    def merged(self, requests: Sequence[Any]) -> "LaneRequest":
        """Return one request for several of this kind. Its reply has their replies by their keys."""
        raise NotImplementedError

    def reply(self, rows: Sequence[Any]) -> Any:
        """Return the reply that the rows are."""
        return rows


ArgumentsOf = Callable[[Any], tuple[Any, ...]]  # what a connection's ``fetch`` takes for a request


class Ticket(ABC):
    """A request that waits."""

    def __init__(self, request: LaneRequest, arguments: ArgumentsOf) -> None:
        self.request, self.arguments = request, arguments
        self.since = boottime()

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether it has its outcome, or its waiter has gone."""

    @abstractmethod
    def end(self, outcome: object) -> None:
        """Pass the reply on, or an error."""


class WaitingLine:
    """Who waits, by rank and then in their order. A claim waits for at most ``MOST_AHEAD`` batches of ends."""

    def __init__(self) -> None:
        self._ranks: tuple[deque[Any], ...] = (deque(), deque())
        self._ahead = 0  # batches that have left before a claim that waits

    def __bool__(self) -> bool:
        for waiting in self._ranks:
            while waiting and waiting[0].is_over:
                waiting.popleft()
            if waiting:
                return True
        return False

    def add(self, ticket: Ticket) -> None:
        self._ranks[ticket.request.rank].append(ticket)

    def remove(self, ticket: Ticket) -> bool:
        """Return whether it was there."""
        try:
            self._ranks[ticket.request.rank].remove(ticket)
        except ValueError:
            return False
        return True

    def pop(self) -> Any:
        """Take the first out, and return it."""
        ends, claims = self._ranks
        for waiting in (ends, claims) if self._ahead < MOST_AHEAD else (claims, ends):
            while waiting:
                if not (ticket := waiting.popleft()).is_over:
                    self._ahead = self._ahead + 1 if waiting is ends and claims else 0
                    return ticket
        return None

    def fill(self, batch: list[Any]) -> None:
        """Take out what leaves together with the one ticket of a batch, and add it. An interrupt loses none."""
        request, size = batch[0].request, batch[0].request.size
        waiting = self._ranks[request.rank]
        if request.kind is None or not waiting:
            return
        keys, rest = {request.key}, []
        try:
            while waiting and len(batch) < MOST_KEYS:
                more = waiting[0].request
                if waiting[0].is_over:
                    waiting.popleft()
                    continue
                together = size + more.size
                if more.kind != request.kind or more.key in keys or together > MOST_BYTES:
                    rest.append(waiting.popleft())
                else:
                    size = together
                    batch.append(waiting.popleft())
                keys.add(more.key)  # what comes later for this key does not pass it
        finally:
            waiting.extendleft(reversed(rest))


def carry(batch: Sequence[Ticket]) -> Generator[LaneRequest, Any, None]:
    """Do the requests of a batch: yields requests, and is sent the reply or the error of each. A lost connection ends it."""
    alone = batch
    if len(batch) > 1:
        answer = yield batch[0].request.merged([ticket.request for ticket in batch])
        if not isinstance(answer, Exception):
            alone = []
            for ticket in batch:
                reply = answer.replies.get(ticket.request.key)
                alone.append(ticket) if reply is None else ticket.end(reply)
    for ticket in alone:
        if not ticket.is_over:
            ticket.end((yield ticket.request))


def abandon(batch: Sequence[Ticket], error: BaseException) -> None:
    """Fail what has no outcome yet: it is in doubt."""
    for ticket in batch:
        if not ticket.is_over:
            ticket.end(_for_another(error))


def _for_another(error: BaseException) -> Exception:
    """Return an error for one more waiter: a raised one collects the tracebacks of all."""
    if isinstance(error, SqlRefusal):
        return SqlRefusal(error.state, str(error))
    another = Broken(str(error) if isinstance(error, Broken) else f"the batch was stopped by {error!r}")
    another.__cause__ = error.__cause__  # which tells what to do
    return another
