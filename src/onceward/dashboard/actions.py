"""What a visitor can do to a record: each action says first what it will do, and refuses a record that has changed since."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from onceward.aws.dead_letters.letters import unpark_to
from onceward.aws.sqs.queue import Queue
from onceward.core.policy import Seal
from onceward.core.protocol import is_known, is_live
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record
from onceward.core.views import relative
from onceward.dashboard.showing import kept_in, kept_place, steps_of
from onceward.errors import OncewardError, StoreError
from onceward.stores import audit
from onceward.stores.contract import Store
from onceward.stores.ledger import Ledger


class Changed(OncewardError):
    """The record is no longer the one that its visitor saw."""


class SeenLedger(Ledger):
    """A ledger whose changes apply only to one version of a record: the one that its visitor saw.

    All changes of a ledger read the record first, and write only if it is still that one.

    Args:
        store: of the ledger.
        version: as :func:`version_of` returns it.
    """

    def __init__(self, store: Store, version: str) -> None:
        super().__init__(store)
        self._version = version

    def show(self, key: str, *, whole: bool = False) -> tuple[Record, float]:
        """Return the record, or raise Changed."""
        record, now = super().show(key, whole=whole)
        if version_of(record) != self._version:
            raise Changed(
                "the record has changed since you looked at it. Nothing was done. Look at it again, and decide again"
            )
        return record, now


def version_of(record: Record) -> str:
    """Return what tells the states of a key apart; no two share it."""
    return f"{record.owner}.{record.fence}.{record.beat}"


class Preview(NamedTuple):
    """What an action will do.

    Attributes:
        does: in words.
        loses: what it takes away from somebody, which the visitor must accept; None if nothing.
        choices: values of its detail to choose from, such as steps.
        asks: what its detail is, for a text field; None if it has none.
        suggested: the detail that is filled in.
    """

    does: str
    loses: str | None = None
    choices: tuple[str, ...] = ()
    asks: str | None = None
    suggested: str = ""


class Action(NamedTuple):
    """One thing that can be done to a record.

    Attributes:
        name: in links and in the audit.
        verb: on its button.
        preview: returns what it will do; None if it means nothing for this record.
        apply: does it: to a key of a ledger, with a detail.
        how: says what was done, with the detail.
    """

    name: str
    verb: str
    preview: Callable[[Record, float], Preview | None]
    apply: Callable[[Ledger, str, str], object]
    how: str

    def run(self, ledger: Ledger, key: str, detail: str) -> str:
        """Do it, and return what was done."""
        self.apply(ledger, key, detail)
        return self.how.format(detail)


def _clears(record: Record, now: float) -> Preview:
    does = "It deletes this record. The next delivery of the key runs the handler again, from its beginning."
    if record.status == COMPLETED:
        does += (
            " The effect of the handler may then happen a second time: duplicates no longer get the recorded result."
        )
    loses = _holder(record, now)
    if kept_in(record) is not None:
        loses = "It keeps a message that is in no queue any more. That message will be lost. Sending it again keeps it."
    if record.unsent is not None:
        loses = (
            "It has messages that are not sent yet. They will be lost. A relay sends those that no target has refused."
        )
    return Preview(does, loses)


def _parks(record: Record, now: float) -> Preview | None:
    if record.status not in {IN_PROGRESS, RELEASED} or not is_known(record):
        return None
    does = "It stops all retries of this key. Callers are told that it is parked, and your reason, until somebody unparks it."
    return Preview(does, _holder(record, now), asks="The reason that callers are told", suggested="parked by hand")


def _unparks(record: Record, _: float) -> Preview | None:
    if record.status != PARKED or kept_in(record) is not None or not is_known(record):
        return None
    return Preview(
        "The next delivery of this key runs, with all its attempts. Nothing is delivered by this action itself."
    )


def _sends(record: Record, _: float) -> Preview | None:
    stored = kept_in(record)
    if stored is None:
        return None
    queue = kept_place(stored)[1]
    does = "It sends the kept message to a queue again, and unparks this key. The worker of that queue then runs the handler."
    return Preview(does, asks="The queue: its URL, ARN or name", suggested=queue)


def _send(ledger: Ledger, key: str, detail: str) -> None:
    ledger.show(key)  # the version that the visitor saw; what follows meets copies that workers have kept again
    try:
        send_again(Ledger(ledger.store), key, detail)
    except ValueError as error:
        raise OncewardError(str(error)) from error


def send_again(ledger: Ledger, key: str, to: str, seal: Seal | None = None) -> tuple[Record, str]:
    """Send the message again that a parked record keeps, and unpark its key. Return the record, and what was done.

    Args:
        ledger: of the key.
        key: in the ledger.
        to: the queue: its URL, ARN or name in SQS.
        seal: that of the workers.

    Raises:
        ValueError: that is no queue.
        OncewardError: it was not sent, or possibly not.
    """
    queue = Queue(to)
    try:
        return unpark_to(ledger, key, queue, seal), f"its message was sent to {queue.name}, and the key is unparked"
    finally:
        queue.close()


def _retries(record: Record, now: float) -> Preview | None:
    steps = steps_of(record)
    waits = kept_in(record) is not None or record.unsent is not None
    if isinstance(steps, str) or not steps or is_live(record, now) or waits:
        return None
    does = (
        "It forgets the chosen step and all steps after it. The next delivery makes them again, and keeps the results of the "
        "steps before. This holds for a completed key, too."
    )
    return Preview(does, choices=tuple(step.name for step in steps), asks="The first step to make again")


def _holder(record: Record, now: float) -> str | None:
    if not is_live(record, now):
        return None
    who = record.worker or "A worker"
    return f"{who} holds this key; its lease ends {relative(record.lease_until, now)}. Its result will be refused."


ACTIONS: Final = {
    action.name: action
    for action in (
        Action(
            "unpark", "Unpark", _unparks, lambda ledger, key, _: ledger.unpark(key), "unparked: the next delivery runs"
        ),
        Action(
            "send", "Send the kept message of", _sends, _send, "its message was sent to {}, and the key is unparked"
        ),
        Action("retry", "Retry from a step of", _retries, Ledger.retry, "the next delivery begins at the step {}"),
        Action(
            "park",
            "Park",
            _parks,
            lambda ledger, key, why: ledger.park(key, why or "parked by hand", live=True),
            "parked",
        ),
        Action(
            "clear",
            "Clear",
            _clears,
            lambda ledger, key, _: ledger.clear(key, live=True, message=True, unsent=True),
            "cleared: the next delivery runs",
        ),
    )
}


def run_audited(
    ledger: Ledger, record: Record, action: str, who: str, why: str, act: Callable[[Ledger], str], detail: str = ""
) -> str:
    """Act on the version of a record that its visitor saw, under an entry of the audit. Return what was done.

    Raises:
        StoreError: it may have been done: the entry stays without an end.
        OncewardError: it was not done, as the entry says.
    """
    before = f"{record.status}, fence {record.fence}, {record.attempts} attempts"
    entry = audit.begin(ledger, audit.Deed(record.key, action, who, why, before, detail))
    try:
        how = act(SeenLedger(ledger.store, version_of(record)))
    except StoreError:
        raise
    except OncewardError as error:
        audit.end(ledger, entry, f"{'not done' if isinstance(error, Changed) else 'failed'}: {error}")
        raise
    audit.end(ledger, entry, how)
    return how


def possible(record: Record, now: float) -> Mapping[str, Preview]:
    """Return the actions that mean something for a record. Audit entries take none."""
    if record.key.startswith(f"{audit.NAMESPACE}:"):
        return {}
    previews = {name: action.preview(record, now) for name, action in ACTIONS.items()}
    return {name: preview for name, preview in previews.items() if preview is not None}
