"""A table in DynamoDB: sends calls, and handles the answers' times and errors."""

from collections.abc import Sequence
from typing import cast

from onceward.core.clock import Clock
from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.observe.events import StoreRequest
from onceward.stores.dynamodb import faults
from onceward.stores.dynamodb.items import Layout
from onceward.stores.dynamodb.replies import units
from onceward.stores.dynamodb.requests import Requests
from onceward.stores.observed import Observed, Tell
from onceward.wire.calls import Call, Many, ObjectCall, ServiceAnswer
from onceward.wire.clock import ServerClock
from onceward.wire.codes import code_of
from onceward.wire.wires import Wires


class DynamoTable(Observed):
    """A table, and the wires to it. For the arguments, see :class:`DynamoStore`."""

    def __init__(self, table: str, wires: Wires, layout: Layout, url: str, clock: Clock) -> None:
        self.url = url
        self.layout = layout
        self.requests = Requests(table, layout)
        self.clock = ServerClock(clock)
        self._s3_clock = ServerClock(clock)  # only signatures go by it
        self._wires = wires
        self.may_renew = wires.may_renew

    def exchange(self, request: object) -> object:
        """Send a call, or many in parallel."""
        return self._wires.send(cast("Call | ObjectCall | Many", request), self._signing(request))

    async def exchange_async(self, request: object) -> object:
        return await self._wires.send_async(cast("Call | ObjectCall | Many", request), self._signing(request))

    def _signing(self, request: object) -> float:
        return (self._s3_clock if type(request) is ObjectCall and self._s3_clock.known else self.clock).signing()

    def close(self) -> None:
        self._wires.close()

    def observe(self, tell: Tell) -> None:
        """See :meth:`Observed.observe`. From now on each answer reports the capacity that it consumed."""
        super().observe(tell)
        self.requests = Requests(self.requests.table, self.layout, metered=True)

    def told_of(self, request: object, reply: object, seconds: float) -> list[StoreRequest]:
        if isinstance(request, Many):
            replies = reply if isinstance(reply, list) else [reply] * len(request.calls)
            pairs = zip(request.calls, replies, strict=True)
            return [told for one, met in pairs for told in self.told_of(one, met, seconds)]
        action = faults.name_of(cast("Call | ObjectCall", request))
        if not isinstance(reply, ServiceAnswer):
            return [StoreRequest(self.url, action, seconds, type(reply).__name__)]
        code = "" if reply.status == 200 else code_of(reply)
        return [StoreRequest(self.url, action, reply.received - reply.sent, code, units(reply))]

    def ask(self, call: Call | ObjectCall, *, gone: int = 200) -> Steps[ServiceAnswer]:
        """Send a call and return its answer. Raises StoreError for an error other than the status ``gone``."""
        answer = yield from self.heard(call, cast("ServiceAnswer", (yield call)))
        if answer.status not in {200, gone}:
            raise self.failure(call, answer)
        return answer

    def ask_many(self, calls: tuple[Call, ...], *, again: bool = True) -> Steps[list[ServiceAnswer | StoreError]]:
        """Send calls in parallel. Return their answers, refusals included, or an error for each without an answer."""
        got: Sequence[object]
        if len(calls) > 1:
            got = cast("list[object]", (yield Many(calls)))
        else:
            try:
                got = [(yield calls[0])]
            except StoreError as error:
                got = [error]
        answers: list[ServiceAnswer | StoreError] = []
        for call, answer in zip(calls, got, strict=True):
            if isinstance(answer, StoreError):
                answers.append(answer)
            elif isinstance(answer, ServiceAnswer):
                try:
                    answers.append((yield from self.heard(call, answer, again=again)))
                except StoreError as error:
                    answers.append(error)
            else:
                raise cast("Exception", answer)
        return answers

    def heard(self, call: Call | ObjectCall, answer: ServiceAnswer, *, again: bool = True) -> Steps[ServiceAnswer]:
        """Learn an answer's time. If its signature was refused and may now be accepted, send the call once more."""
        while True:
            (self.clock if isinstance(call, Call) else self._s3_clock).learn(answer)
            if not again or not self.may_renew(answer):
                return answer
            again = False
            answer = cast("ServiceAnswer", (yield call))

    def failure(self, call: Call | ObjectCall, answer: ServiceAnswer) -> StoreError:
        """Return the error that an answer is."""
        return faults.failure(call, answer, url=self.url, keys=" and ".join(part.name for part in self.layout.parts))

    def learn_time(self) -> Steps[None]:
        """Read any key, so that the answer shows the time."""
        if not self.clock.known:
            yield from self.ask(self.requests.get("?", consistent=False))
            if not self.clock.known:
                raise StoreError(
                    f"ledger {self.url}: its answers have no Date header of DynamoDB's own, and no lease is safe without its time. A "
                    "server in its place must send Date, and application/x-amz-json-1.0 as the type"
                )
