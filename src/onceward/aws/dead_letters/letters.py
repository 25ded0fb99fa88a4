"""A message of a dead-letter queue: its key in the ledger, what to do about its record, and its copy for another queue.

No I/O: ``redrive.py`` asks the queues and the ledger.
"""

from typing import Final, Literal, NamedTuple

from onceward.aws.events.sqs import Unwrap, message_delivery
from onceward.aws.sqs.broker import record_of
from onceward.aws.sqs.message import MOST_ATTRIBUTES, Attribute, Message, Outgoing, entry_of, size_of
from onceward.aws.sqs.settings import LARGEST
from onceward.consumers.delivery import KEY_ATTRIBUTE, Delivery
from onceward.consumers.reader import DELIVERY_NAME, default_key
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, message_in
from onceward.core.record import Record
from onceward.errors import KeyMissing, OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.keys.paths import StrictPath
from onceward.keys.reading import KeyReader
from onceward.keys.roots import fixed

_BODY: Final = fixed("body", "the decoded body of the message")

OnCompleted = Literal["keep", "rerun", "drop"]


class Refusal(OncewardError):
    """A message stays in the dead-letter queue; the text says why."""


class LetterReading(NamedTuple):
    """What is read from a message.

    Attributes:
        origin: the default key, as of the original message.
        key: in the ledger.
        fingerprint: of its input; None if its consumer compares none, or if it is unknown.
    """

    origin: str
    key: str
    fingerprint: str | None = None


class Letters:
    """Reads the messages of a dead-letter queue as the consumer of its source queue does.

    Args:
        name: the namespace of the consumer's keys.
        key: its ``key=``, if that is a JMESPath expression, with ``body`` in place of the handler's parameter; None for the
            default key.
        where: a JMESPath expression over ``body`` that is true for the messages to select; None is all.
        unwrap: the consumer's ``unwrap=``.
        fingerprint: its ``fingerprint=`` in the same way, or ``"body"`` for True; None if it compares none.

    Attributes:
        by_default: whether the consumer uses the default key.

    Raises:
        ValueError: an expression is not valid.
    """

    def __init__(
        self,
        name: str,
        key: str | None = None,
        where: str | None = None,
        unwrap: Unwrap | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self._name, self._unwrap = name, unwrap
        self._keys = KeyReader(default_key if key is None else key, fingerprint, _BODY, more=(DELIVERY_NAME,))
        self.by_default = key is None and unwrap is None  # with unwrap, the key is in SNS's envelope
        self._where = None if where is None else StrictPath(where, "where", _BODY)

    def meant(self, message: Message) -> bool:
        """Tell whether ``where`` is true for a message, in JMESPath's sense: an empty value is false."""
        if self._where is None:
            return True
        try:
            found = self._where.search({"body": self._delivery(message).data})
        except KeyMissing:
            return False  # the message lacks a part that a function of the expression needs
        return found is not None and found is not False and found not in ("", [], {})

    def read(self, message: Message) -> LetterReading:
        """Return the keys of a message.

        Raises:
            Refusal: it has none.
        """
        try:
            delivery = self._delivery(message)
            if delivery.fault is not None:
                raise delivery.fault
            named = {"body": delivery.data}
            key = self._keys.key(named, {DELIVERY_NAME: delivery})
            return LetterReading(origin(message), ledger_key(self._name, key), self._keys.fingerprint(named, named))
        except (OncewardError, TypeError) as error:
            raise Refusal(f"its key cannot be read: {error}") from error

    def _delivery(self, message: Message) -> Delivery:
        return message_delivery(record_of(message, ""), unwrap=self._unwrap, fifo=False)


def copied(message: Message, dedup: str | None, room: int, *, by_default: bool) -> Outgoing:
    """Return a copy of a message, with its default key as an attribute.

    SQS gives the copy a new message id. If that became its key, the effect could happen again.

    Args:
        message: the message.
        dedup: the copy's deduplication id, the same each time; None in a standard queue.
        room: the most bytes of a message in the target queue.
        by_default: whether its consumer uses the default key.

    Raises:
        Refusal: the consumer does, and there is no room for the attribute.
    """
    same = Outgoing(message.body, message.user_attributes, message.group, dedup)
    if _text(message.user_attributes.get(KEY_ATTRIBUTE)) is not None:
        return same
    attributes = {**message.user_attributes, KEY_ATTRIBUTE: Attribute("String", message.id)}
    marked = same._replace(attributes=attributes)
    if len(attributes) > MOST_ATTRIBUTES:
        full = f"it has {MOST_ATTRIBUTES} attributes, and SQS takes no more"
    elif (size := size_of(entry_of(marked))) > room:
        full = (
            f"with it the message has {size} bytes, and its target takes {room} (MaximumMessageSize, up to {LARGEST})"
        )
    else:
        return marked
    if not by_default:
        return same
    raise Refusal(
        f"there is no room for {KEY_ATTRIBUTE}: {full}. Without it the copy has another key, and its effect could happen "
        "twice. Send it by hand, or give the consumer a key from the body, and --key to `onceward redrive`"
    )


def origin(message: Message) -> str:
    """Return the default key of a message: its attribute's, else its id."""
    return _text(message.user_attributes.get(KEY_ATTRIBUTE)) or message.id


Step = Literal["move", "unpark", "reset", "rerun", "drop", "finish", "keep", "wait"]


class Plan(NamedTuple):
    """What to do with a message because of its record.

    Attributes:
        step: "move" it as it is; "unpark" its key, "reset" its attempts, or "rerun" (clear the key), and move it; "drop" the
            message, because its effect has happened; "finish" what an earlier run began, because the effect has happened
            since; "keep" it, because its key is completed; or "wait" for a worker that has the key.
        reason: why, for people.
    """

    step: Step
    reason: str

    @property
    def moves(self) -> bool:
        """Whether to send a copy."""
        return self.step in {"move", "unpark", "reset", "rerun"}


def planned(
    record: Record | None,
    now: float,
    completed: OnCompleted,
    *,
    begun: bool,
    intended: bool,
    fingerprint: str | None = None,
) -> Plan:
    """Return what to do with a message.

    Args:
        record: of its key, or None.
        now: the store's time.
        completed: what to do about a completed key.
        begun: whether an earlier run had begun to move the message.
        intended: whether a run noted that it clears this completed record, to run the key again.
        fingerprint: of the message; None if it is unknown.
    """
    verdict = decide(record, now, "", fingerprint, Policy())
    if record is None or verdict is Verdict.START:
        return Plan("move", "no record of its key")
    if verdict is Verdict.BUSY:
        left = record.lease_until - now
        return Plan("wait", f"a worker holds its key for {left:.0f} s more, or longer: try again later")
    if verdict is Verdict.MISMATCH:
        why = "its key was used with another input, so its consumer refuses it: fix the message, or its sender"
        return Plan("keep", why)
    if verdict is Verdict.REPLAY:
        return _of_completed(record, completed, finished=begun and not intended, unknown=fingerprint is None)
    if message_in(record) is not None:
        why = "its key is parked, and keeps a message, which goes first: `onceward unpark KEY --to QUEUE` sends that again"
        return Plan("wait", why)
    step: Step = "unpark" if verdict is Verdict.PARKED else "reset" if record.attempts else "move"
    return Plan(step, f"{record.status} after {record.attempts} attempt(s)")


def _of_completed(record: Record, completed: OnCompleted, *, finished: bool, unknown: bool) -> Plan:
    if not finished and completed == "keep":
        why = "completed already: --completed drop deletes the message, --completed rerun runs it again"
        return Plan("keep", why)
    if unknown and record.fingerprint is not None:
        why = (
            "its key is completed, maybe with another input, which its consumer compares: say what it compares with --fingerprint, or "
            "this message's effect could be lost"
        )
        return Plan("keep", why)
    if finished:
        return Plan("finish", "an earlier run had begun to move it, and its effect has happened")
    return (
        Plan("drop", "completed: its effect has happened")
        if completed == "drop"
        else Plan("rerun", "completed, and to run again as told")
    )


def _text(attribute: Attribute | None) -> str | None:
    return attribute.value if attribute is not None and isinstance(attribute.value, str) and attribute.value else None
