"""The senders of the explorer: the worker that completes a key, a duplicate, and a relay. All use the real writes.

The text of a record's messages is the id of who has the send lease, and the numbers of those that are left: ``1.1:0 1``.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.drivers import Steps
from onceward.core.protocol import may_send
from onceward.core.record import Record
from onceward.core.steps import Won
from onceward.core.writes import send_lease
from onceward.errors import StoreError

if TYPE_CHECKING:
    from explorer.actors import Casting, Seat

KEY: Final = "key"


class Choice(NamedTuple):
    options: tuple[str, ...]


def text_of(by: str, numbers: list[str]) -> str:
    """Return the text of a record's messages."""
    return f"{by}:{' '.join(numbers)}"


def messages_in(record: Record | None) -> list[str]:
    """Return the numbers of the messages that a record has."""
    return record.unsent.partition(":")[2].split() if record is not None and record.unsent else []


def sending(number: str, fence: int) -> Choice:
    """Return the point where a message of the claim with this fence is sent."""
    return Choice((f"sends message {number} of {fence}",))


def send(cast: "Casting", seat: "Seat", record: Record, until: float) -> Steps[None]:
    """Send a record's messages in order, as long as the send lease is believed in, and strike them out."""
    seat.sending = until
    for number in messages_in(record):
        if seat.clock >= until:
            break
        yield sending(number, record.fence)
    else:
        yield from _noted(cast, seat, record, None)
    seat.sending = 0.0


def relay(cast: "Casting", seat: "Seat", by: str) -> Steps[str]:
    """Send what is due, as a relay does, and a worker that has answered a duplicate."""
    try:
        reply = yield from cast.register.load(KEY)
    except StoreError:
        return "store away"
    held = reply.record
    if held is None or not may_send(held, reply.now):
        return "nothing due"
    taken = yield from _noted(cast, seat, held, text_of(by, messages_in(held)))
    if taken is None:
        return "not taken"
    yield from cast.parts.send(cast, seat, taken.record, taken.until)
    return "relayed"


def _noted(cast: "Casting", seat: "Seat", record: Record, unsent: str | None) -> Steps[Won | None]:
    limit = seat.clock + cast.policy.lease
    try:
        noted = yield from cast.parts.note(
            cast.register,
            record,
            unsent,
            due=send_lease(cast.policy),
            keep=cast.policy.retention,
            clock=lambda: seat.clock,
            until=lambda: limit,
        )
    except StoreError:
        return None
    return noted if isinstance(noted, Won) else None
