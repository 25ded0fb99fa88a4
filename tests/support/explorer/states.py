"""The explorer's states, and the limits of what can go wrong between them."""

from typing import NamedTuple

from explorer.actors import Left, Node
from onceward.core.record import Record
from onceward.testing.clock import EPOCH

SLOW = 0.9905  # how fast the workers' clocks run; the protocol allows for a hundredth


class Bounds(NamedTuple):
    lapses: int = 1
    faults: int = 1
    crashes: int = 1
    interrupts: int = 0
    late: bool = True
    strides: tuple[float, ...] = (1.0,)
    purges: bool = True


class Slot(NamedTuple):
    """A running worker in one state: its node, and the reply in flight to it since that many lapses."""

    node: Node
    reply: object = None
    since: int = -1


class State(NamedTuple):
    """The complete state. Equal states have equal futures."""

    slots: tuple[Slot | Left, ...]
    record: Record | None = None
    now: float = EPOCH
    peak: int = 0  # the key's largest fence so far
    written: frozenset[tuple[str, str]] = frozenset()  # (owner, status) of every write that was made
    recorded: frozenset[tuple[int, str | None]] = frozenset()  # (fence, result) of every completion
    flights: tuple[tuple[Node, str], ...] = ()  # requests in flight whose senders no longer wait: the node, its owner
    stepped: frozenset[tuple[str, int]] = frozenset()  # each step that was recorded, with the fence of its claim
    committed: frozenset[tuple[int, int]] = frozenset()  # each message of a completion, with the fence of its claim
    sent: frozenset[tuple[int, int]] = frozenset()  # each message that was sent, with the fence of its claim
    takeovers: int = 0
    expiries: int = 0
    lapses: int = 0
    faults: int = 0
    crashes: int = 0
    interrupts: int = 0

    def put(self, number: int, slot: Slot | Left) -> "State":
        return self._replace(slots=(*self.slots[:number], slot, *self.slots[number + 1 :]))

    def fly(self, node: Node) -> "State":
        flights = (*self.flights, (node, node.seat.owner))
        return self._replace(flights=tuple(sorted(flights, key=lambda flight: id(flight[0]))))

    def clock(self, number: int) -> float:
        """Return a worker's monotonic clock. Each starts at another time and runs slower than the store's."""
        return 1000.0 + 4321.0 * number + (self.now - EPOCH) * SLOW
