"""What the targets at AWS share: requests that end in time, and what a refusal means."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from onceward.core.clock import boottime
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, not_sent, refusal_of
from onceward.wire.calls import FIXES, Call, Document, Service, ServiceAnswer, code_of, message_of
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened

# A request begins at most 3 s after the start of its send. It, one before it that asks for the queue's URL, and one after it with new
# credentials take at most 2.5 s each. Together that is about onceward.outbox.targets.SENT_WITHIN.
BEGIN_WITHIN: Final = 3.0
TIMEOUT: Final = 2.5

_UNKNOWN: Final = "the answer does not say what became of it"

Result = Exception | None


class BatchTarget(ABC):
    """A target whose service takes many messages with one request, and answers for each.

    Attributes:
        service: the service.
        action: the one that takes many messages.
        what: what the service calls a message.
        batch: the most messages of a request.
        largest: bytes of a message.
        together: bytes of a request.
        refusals: the codes that speak of a message itself.
        wires: to the service.

    Raises:
        ValueError: the endpoint is not a URL.
    """

    service: Service
    action: str
    what = "record"
    batch: int
    largest: int
    together: int
    refusals: Collection[str]

    def __init__(self, where: str, region: str | None, endpoint: str | None = None) -> None:
        self.where = where
        # AWS's own name, as in AWS_ENDPOINT_URL_EVENTBRIDGE
        services: dict[str, str | None] = {self.service.name: from_environment(self.service.title.lower()) or endpoint}
        self.wires = opened(region, timeout=TIMEOUT, clock=boottime, **services)

    @abstractmethod
    def size(self, message: OutboxMessage) -> int:
        """Return how many bytes a message has, with its headers; raises ValueError if the target can never take it."""

    @abstractmethod
    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """Return the request that sends messages."""

    @abstractmethod
    def codes(self, answer: ServiceAnswer) -> Mapping[str, tuple[str | None, str]]:
        """Return the code and the text for each message, by its number; the code None says that it was taken."""

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError or TypeError if the target can never take the message."""
        if (size := self.size(message)) > self.largest:
            raise ValueError(
                f"the {self.what} has {size} bytes with its headers, and {self.service.title} takes {self.largest}"
            )

    def close(self) -> None:
        """Close idle connections."""
        self.wires.close()

    def send(self, messages: Sequence[OutboxMessage]) -> list[Result]:
        """Send messages, as many as possible with one request, and return the answer of each.

        What has not begun in time is not sent. If a request is refused, each of its messages is sent alone, to find the one that is
        meant.
        """
        end = boottime() + BEGIN_WITHIN
        # A version before this one may have let a message pass that the target can never take.
        results: list[Result] = [refusal_of(self, message) for message in messages]
        todo = list(self._divided(messages, [place for place, error in enumerate(results) if error is None]))
        while todo:
            batch = todo.pop(0)
            answers: list[Result] = [MessageNotSent("the requests before it took too long")] * len(batch)
            if boottime() < end:
                answers = self._answers([messages[place] for place in batch])
            if len(batch) > 1 and answers[0] is answers[-1] and isinstance(answers[0], MessageRefused):
                todo[:0] = [[place] for place in batch]
                continue
            for place, answer in zip(batch, answers, strict=True):
                results[place] = answer
        return results

    def _divided(self, messages: Sequence[OutboxMessage], places: Iterable[int]) -> Iterator[list[int]]:
        """Divide messages into requests. One that alone is larger goes alone."""
        batch: list[int] = []
        room = self.together
        for place in places:
            size = self.size(messages[place])
            if batch and (len(batch) == self.batch or size > room):
                yield batch
                batch, room = [], self.together
            batch.append(place)
            room -= size
        if batch:
            yield batch

    def _answers(self, messages: Sequence[OutboxMessage]) -> list[Result]:
        """Make one request, and return the answer of each message: the same error for all, if the request has failed."""
        try:
            answer = self.wires.ask(Call(self.service, self.action, self.body(messages)))
        except StoreError as error:
            return [not_sent(self.where, error)] * len(messages)  # nobody knows what became of it
        if answer.status != 200:
            return [self._error(code_of(answer), message_of(answer))] * len(messages)
        codes = self.codes(answer)
        told = [codes.get(str(number), ("", _UNKNOWN)) for number in range(len(messages))]
        return [None if code is None else self._error(code, why) for code, why in told]

    def _error(self, code: str, message: str) -> MessageRefused | MessageNotSent:
        """Return what a refusal means."""
        if code in self.refusals:
            return MessageRefused(f"{self.where} refuses this message: {code} ({message})")
        fix = f": {FIXES[code]}" if code in FIXES else ""
        return MessageNotSent(f"{self.where} did not take it: {code} ({message}){fix}")


def options_of(address: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return an address without its scheme and options, and its options: what follows the ``?``.

    Raises:
        ValueError: an option is unknown, given twice or empty.
    """
    from urllib.parse import unquote

    place, _, query = address.partition(":")[2].partition("?")
    options: dict[str, str] = {}
    for text in filter(None, query.split("&")):
        name, _, value = text.partition("=")
        if name not in names or name in options or not value:
            raise ValueError(
                f"{shown_url(address)!r}: after the ? give each of {', '.join(sorted(names))} once at most, as in region=eu-west-1"
            )
        options[name] = unquote(value)
    return place, options
