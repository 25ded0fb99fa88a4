"""One message of a dead-letter queue: the ledger decides whether it leaves, and it is sent once.

After a kill at any step, the next run continues from what is left:

1. the sending is claimed in the ledger, under its own namespace and the message's id, and the message's key is made ready to run
   again: unparked, or its attempts reset;
2. the copy is sent, with an attribute that carries the original's default key (``letters.py``);
3. the sending is recorded;
4. the message is deleted (``redrive.py``).

After 3 the next run finds the sending recorded, and only deletes. Between 2 and 3 it cannot know, and sends again. A FIFO
queue drops the second copy by its deduplication id; in a standard queue it has the key of the first, and replays.
"""

from typing import Final, Literal, NamedTuple

from onceward.aws.dead_letters.letters import LetterReading, Letters, Refusal, copy_of
from onceward.aws.sqs.message import Message, Outgoing
from onceward.aws.sqs.queue import Queue
from onceward.consumers.redriving import InDoubt, OnCompleted, Plan, Step, readied
from onceward.core.drivers import drive
from onceward.core.policy import DAY, Options, Policy
from onceward.core.protocol import Verdict, decide
from onceward.core.record import Record
from onceward.errors import Busy, Completed, OncewardError, Parked
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.once import Once

NAME: Final = "onceward.redrive"  # the namespace of the sendings
KEPT: Final = 14 * DAY  # seconds that a sending is remembered: no queue keeps a message longer (MessageRetentionPeriod)

Outcome = Literal["moved", "finished", "dropped", "refused", "failed"]
_OUTCOMES: Final[dict[Step, Outcome]] = {"drop": "dropped", "finish": "finished", "keep": "refused", "wait": "refused"}


class Fate(NamedTuple):
    """The outcome of a message; in a dry run, the expected outcome.

    Attributes:
        outcome: "moved"; "finished": an earlier run had sent it, or its effect has happened since; "dropped": completed, and
            deleted because of the option; or it stays: "refused" or "failed".
        message: as it was received.
        reason: why, for people.
        key: the key in the ledger; None if it was not read.
        record: the key's record, as it was read; None if there is none.
        error: the exception, if something failed; else None.
        waits: whether later messages of its group must wait for it.
    """

    outcome: Outcome
    message: Message
    reason: str
    key: str | None = None
    record: Record | None = None
    error: Exception | None = None
    waits: bool = False

    @property
    def leaves(self) -> bool:
        """Whether the message leaves the dead-letter queue."""
        return self.outcome in {"moved", "finished", "dropped"}


class Mover:
    """Decides about messages and sends their copies. Set ``room`` first; then any number of threads can use it.

    The arguments are those of :class:`onceward.aws.Redrive`; ``lease`` is the seconds that a sending is claimed for.
    """

    def __init__(
        self,
        once: Once,
        target: Queue,
        letters: Letters,
        *,
        completed: OnCompleted,
        in_doubt: InDoubt,
        lease: float,
        dry_run: bool,
    ) -> None:
        self._once, self._target, self._letters = once, target, letters
        self._completed: OnCompleted = completed
        self._in_doubt: InDoubt = in_doubt
        self._dry_run = dry_run
        self._options: Options = {
            "lease": max(lease, 3 * once.store.resolution),
            "heartbeat": 0,
            "retention": KEPT,
            "max_attempts": None,
            "on_lapse": "retry",
            "on_busy": "raise",
        }
        self._sent: set[str] = set()  # origins of the messages that were moved
        self.room = 0  # bytes that a message may have in the target

    def judge(self, message: Message) -> Fate:
        """Decide about a message, and send its copy if it leaves. The message itself is not changed.

        Raises:
            Refusal: it stays, for a reason that is not in its record.
            QueueError: its copy was not sent, or possibly not.
            StoreError: the ledger cannot be reached.
            ValueError: SQS does not accept such a copy.
        """
        own, now = self._look(ledger_key(NAME, message.id))
        verdict = decide(own, now, "", None, Policy())
        if verdict is Verdict.REPLAY:
            return Fate("finished", message, "an earlier run has sent it")
        if own is not None and verdict in {Verdict.BUSY, Verdict.PARKED}:
            rest = max(0.0, own.lease_until - now)
            why = f"its sending is {own.status}: another run is moving it, or was killed; try again in {rest:.0f} s"
            raise Refusal(why)
        reading = self._letters.read(message)
        if reading.origin in self._sent:
            raise Refusal("this run already moved it, or a copy of it: find out first why it came back")
        has_begun = own is not None and verdict is not Verdict.START
        plan, record = self._plan(reading, has_begun=has_begun, dry_run=True)
        if plan.moves:
            self._copy(message)  # refuses what cannot be sent before anything is changed
        if not self._dry_run and (plan.moves or plan.step == "finish"):
            plan, record = self._act(message, reading)
        if plan.moves:
            self._sent.add(reading.origin)
        outcome = "moved" if plan.moves else _OUTCOMES[plan.step]
        return Fate(outcome, message, plan.reason, reading.key, record, waits=plan.step == "wait")

    def _act(self, message: Message, reading: LetterReading) -> tuple[Plan, Record | None]:
        """Send a message's copy under a claim of its own; return the plan that was carried out."""
        try:
            claim = self._once.acquire(message.id, name=NAME, **self._options)
        except Completed:
            return Plan("finish", "another run has sent it"), None
        except (Busy, Parked) as error:
            raise Refusal(f"another run is moving it: {error}") from error
        try:
            plan, record = self._plan(reading, has_begun=True, dry_run=False)
            if claim.lost:
                plan = Plan("wait", "this run was paused for so long that another may have continued")
            if plan.step in {"keep", "wait"}:
                claim.release(plan.reason)
                return plan, record
            sent = None
            if plan.moves:
                sent = self._target.send(*self._copy(message))
        except Exception as error:
            try:
                claim.release(str(error))
            except OncewardError:
                pass  # it lapses
            raise
        try:
            claim.complete({"to": self._target.name, "id": sent})
        except OncewardError:
            pass  # it was sent, so it is deleted now; only a later run would need the record
        return plan, record

    def _copy(self, message: Message) -> Outgoing:
        dedup = derived_key(ledger_key(NAME, message.id), ("send",)) if self._target.fifo else None
        return copy_of(message, dedup, self.room, by_default=self._letters.by_default)

    def _plan(self, reading: LetterReading, *, has_begun: bool, dry_run: bool) -> tuple[Plan, Record | None]:
        """Return what to do with a message, and the record of its key; unless ``dry_run``, make the key ready to run again."""
        mark, answers = reading.fingerprint, (self._completed, self._in_doubt)
        return readied(self._once, reading.key, *answers, dry_run=dry_run, has_begun=has_begun, fingerprint=mark)

    def _look(self, key: str) -> tuple[Record | None, float]:
        store = self._once.store
        reply = drive(store.load(key), store)
        return reply.record, reply.now
