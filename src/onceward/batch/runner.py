"""One call of a batch, as data: it reads the records, claims their keys, and records how their handlers ended.

Nothing here does I/O or calls a handler: ``batch.py`` does both, sync and async, and ``recorder.py`` records the ends.
"""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onceward.batch.ends import end_together, give_back_together
from onceward.batch.handler import BatchHandler
from onceward.batch.order import Order, TimeLeft
from onceward.batch.outcomes import Item
from onceward.batch.report import Report
from onceward.claim import called, heartbeat
from onceward.claim.called import OVER, RETURNED, Call
from onceward.claim.held import HeldClaim
from onceward.core import steps
from onceward.core.drivers import Steps
from onceward.core.many import Claimed
from onceward.core.record import COMPLETED, Elsewhere
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.errors import OncewardError, ResultUnavailable
from onceward.keys.ledger_keys import ledger_key

if TYPE_CHECKING:
    from collections.abc import Hashable


class Run:
    """One call of a batch.

    Attributes:
        order: which item begins next.
        report: the outcomes.
    """

    def __init__(self, batch: BatchHandler, records: Sequence[Any], time_left: float | None) -> None:
        self._batch = batch
        self._guard = batch.guard
        self._clock = batch.guard.clock
        self._time = TimeLeft(batch, time_left)
        self.order = Order(self._time)
        self.report = Report(batch)
        self._is_abandoned = False
        self._since = 0.0  # when the chunk was claimed
        self._groups: dict[Hashable, int] = {}  # the caller's value: the number here
        self._chunk: list[Item] = []
        self.items = [self._read(index, record) for index, record in enumerate(records)]
        firsts: dict[str, Item] = {}
        for item in self.items:
            if item.outcome is None and firsts.setdefault(item.key, item) is not item:
                item.first = firsts[item.key]

    def _read(self, index: int, record: object) -> Item:
        item = Item(index=index, record=record)
        try:
            self._fill(item)
        except Exception as error:  # a user's callable may raise anything; the other records go on
            try:
                self._fill(item)
            except Exception:
                self.report.report(item, "malformed", error=error)
            else:
                raise  # it came only once: a time limit
        return item

    def _fill(self, item: Item) -> None:
        if self._batch.group is not None:
            group = self._batch.group(item.record)
            if group is not None:
                item.group = self._groups.setdefault(group, len(self._groups))
        item.args, key, item.fingerprint, item.comes, item.provenance = self._batch.read(item.record)
        item.key = ledger_key(self._batch.name, key)

    def chunks(self) -> Iterator[list[Item]]:
        """Yield the items to claim together, chunk by chunk, until the time is up or the order is stopped."""
        rest = list(self.items)
        while rest and not self.order.is_over:
            size = self._time.chunk()
            self._chunk, rest = rest[:size], rest[size:]
            if self._guard.policy.on_lapse == "park":
                self._chunk, later = self._at_once(self._chunk)
                rest = later + rest
            yield [i for i in self._chunk if i.outcome is None and i.first is None and i.group not in self.order.broken]

    def _at_once(self, items: list[Item]) -> tuple[list[Item], list[Item]]:
        """Return the items that begin at once, the first of each group, and the others: if a lapse parks a key, no claim waits."""
        chosen: list[Item] = []
        later: list[Item] = []
        before: set[object] = set()  # the items and groups of all that came before
        for item in items:
            now = len(chosen) < self._batch.concurrency and not {item.group, item.first} & before
            (chosen if now else later).append(item)
            before |= {item, item.group} - {None}
        return chosen, later

    def bids(self, chunk: list[Item]) -> list[Bid]:
        """Return the bids for a chunk. An item that cannot be bid for gets its outcome and leaves the chunk."""
        self._since = self._clock()
        policy = self._time.policy()
        owners = os.urandom(16 * len(chunk)).hex()  # one system call
        bids = []
        for number, item in enumerate(list(chunk)):
            owner = owners[32 * number : 32 * (number + 1)]
            try:
                bid, _, _, item.span = self._guard.asked(
                    item.key, item.fingerprint, item.provenance, item.comes, owner, policy
                )
            except OncewardError as error:  # the caller already handles this key
                self.report.report(item, "failed", error=error)
                chunk.remove(item)
                continue
            bids.append(bid)
        return bids

    def claimed(self, chunk: list[Item], bids: list[Bid], answers: list[Claimed]) -> None:
        """Process the answers to the claims, and queue the items that may begin."""
        listening = self.report.listening
        for item, answer, bid in zip(chunk, answers, bids, strict=True):
            if not isinstance(answer, Exception) and (listening or isinstance(answer, Refused)):
                self.report.events += self._guard.events_of(answer, self._since, item.span)
            if isinstance(answer, Won):
                span, item.span = item.span, None
                item.claim = claim = self._guard.held(answer, bid.policy, self._since, listening=listening, span=span)
                claim.deadline = self._time.deadline
                heartbeat.HEARTBEAT.watch(claim)
                continue
            if isinstance(answer, Replay) and answer.is_due:
                self._guard.send_due(answer.record)
            if self._batch.values and isinstance(answer, Replay) and type(answer.record.result) is Elsewhere:
                item.replay = answer  # reported after its result is fetched
            else:
                self.report.answered(item, answer)
            if item.span is not None:
                item.span.end(answer if isinstance(answer, Exception) else None)
        self.order.queue(self._chunk)

    def fetching(self) -> Steps[None]:
        """Fetch the results that are kept elsewhere. Meanwhile heartbeats renew the claims."""
        away: Exception | None = None
        for item in self._chunk:
            if item.replay is None or item.outcome is not None:
                continue
            try:
                if away is not None or self._time.is_over():
                    raise away or ResultUnavailable(item.key, "no time was left to fetch it")
                record = yield from steps.fetch_result(item.replay.record, self._clock)
            except OncewardError as error:  # still replayed: it was done, even if its result cannot be fetched
                away = error if getattr(error, "transient", False) else None  # do not wait again for each other item
                self.report.report(item, "replayed", error=error)
            else:
                self.report.answered(item, item.replay._replace(record=record))

    def leaving(self, item: Item, claim: HeldClaim, call: Call) -> Steps[None]:
        """Note how a handler ended, when its steps have. After an interrupt you can drive it again."""
        failure = called.failure(call)
        if failure is not None and claim.inherited:
            raise failure  # a forked child reports no outcomes
        claim.check_own()
        if failure is None and claim.chain is not None:
            failure = claim.chain.refusal()
        ended = failure is None or (yield from self._ended_steps(claim, failure))
        if failure is None or isinstance(failure, Exception):
            self.handled(item, call.get(RETURNED), failure, ended=ended)
        else:
            self.dropped(item)
        call[OVER] = True

    def _ended_steps(self, claim: HeldClaim, failure: BaseException) -> Steps[bool]:
        """Wait for steps that still run beside a handler that failed. Return False if one still runs."""
        if claim.chain is None or claim.settled is not None or not isinstance(failure, Exception):
            return True
        if claim.paused is not None:
            claim.paused()  # an interrupt kept its transaction from ending, and its steps wait for that
        return (yield from claim.chain.ended(self._time.limit))

    def handled(self, item: Item, value: object, error: Exception | None, *, ended: bool = True) -> None:
        """Note how a handler ended. After an interrupt it may be called again.

        ``ended`` is whether the steps of one that failed have ended, too. If not, nobody must repeat them yet.
        """
        claim = item.held
        if self._is_abandoned:
            claim.drop()  # nobody records its end any more
            return
        if error is not None and (not ended or claim.completed_in_vain):
            item.value, item.error = value, error
            claim.let_go()
            self._leave_claimed(item, error)
            return
        item.handled(value, error)
        if error is not None and item.end is not None and claim.must_lapse(item.end):
            item.end = None
            self._leave_claimed(item, error)
            return
        status = claim.settled if item.end is None else item.end.status
        self.order.ended(item, ok=status == COMPLETED)
        if item.end is None and item.outcome is None:
            self._ended(item)

    def dropped(self, item: Item) -> None:
        """Leave an interrupted handler's key claimed to the end of its lease, because its work may still go on."""
        if item.held.settled is not None:  # the handler ended the claim before
            self.handled(item, None, None)
            return
        interrupted = OncewardError(
            f"{item.key}: its handler was interrupted, and work that it started may still go on. The key stays claimed "
            "until its lease ends, and can then run again"
        )
        self._leave_claimed(item, interrupted)

    def _leave_claimed(self, item: Item, error: Exception) -> None:
        item.held.drop()
        self.order.ended(item, ok=False)
        if item.outcome is None:
            self.report.report(item, "failed", error=error)

    def recording(self, items: Sequence[Item]) -> Steps[None]:
        """Record how handlers ended; then report. You can drive it again after an interrupt."""
        if self.order.inherited:
            return
        todo = [item for item in items if item.outcome is None]
        yield from end_together(self._guard, todo, (1, 2), self._time.limit)
        for item in todo:
            if item.outcome is None:
                self._ended(item)

    def _ended(self, item: Item) -> None:
        heartbeat.HEARTBEAT.forget(item.held)
        self.report.ended(item)
        if item.trouble is not None:
            self.order.break_group(item)

    def giving_back(self) -> Steps[None]:
        """Give back the claims of items that have not begun."""
        if self.order.inherited:
            return
        claims = [item.held for item in self.order.idle(self._chunk)]
        yield from give_back_together(self._guard, claims, self._time.limit)
        for claim in claims:
            if claim.story is not None:
                claim.story.note("released", claim.record)
                claim.story.hand_over(self.report.events)

    def abandon(self) -> None:
        """Stop renewing items marked as begun whose handlers an interrupt prevented. A handler that still runs is left alone."""
        self._is_abandoned = True
        for item in self._chunk if not self.order.inherited else ():
            # In a thread, after a second interrupt.
            runs = item.begun and item.held.function is not None and not item.held.left
            if item.begun and not runs and item.end is None and item.outcome is None:
                item.held.drop()

    def note(self, interrupt: BaseException) -> None:
        """End the spans of items that were not claimed: ``interrupt`` is raised instead of the outcomes."""
        for item in self._chunk:
            if item.span is not None:
                item.span.end(interrupt)
