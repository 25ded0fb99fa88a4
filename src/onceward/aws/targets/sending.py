"""What the targets at AWS share: requests that end in time, and what a refusal means."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from onceward.aws.sqs.message import batches
from onceward.core.clock import boottime
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, not_sent, refusal_of
from onceward.wire.calls import FIXES, Call, Document, Service, ServiceAnswer, code_of, message_of
from onceward.wire.clock import ServerClock
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened

# A request begins at most 3 s after the start of its send. It, one before it that asks for the queue's URL, and one after it with new
# credentials take at most 2.5 s each. Together that is about onceward.outbox.targets.SENT_WITHIN.
BEGIN_WITHIN: Final = 3.0
TIMEOUT: Final = 2.5

Result = Exception | None
Answers = list[Result] | MessageRefused | MessageNotSent


class AwsClient:
    """Sends requests to one service.

    Args:
        service: the service.
        region: its region; None is that of the environment or the profile.
        endpoint: a URL instead of the region's own.

    Raises:
        ValueError: the endpoint is not a URL.
    """

    def __init__(self, service: Service, region: str | None, endpoint: str | None) -> None:
        self._service = service
        endpoints: dict[str, str | None] = {service.name: endpoint}
        self._wires = opened(region, timeout=TIMEOUT, clock=boottime, **endpoints)
        self._clock = ServerClock(boottime)

    def ask(self, action: str, body: Document) -> ServiceAnswer:
        """Make a request, and once more if new credentials or the server's time can help.

        Raises:
            StoreError: no answer came, or there are no credentials.
        """
        answer = self._ask(action, body)
        return self._ask(action, body) if answer.status != 200 and self._wires.may_renew(answer) else answer

    def close(self) -> None:
        """Close idle connections."""
        self._wires.close()

    def _ask(self, action: str, body: Document) -> ServiceAnswer:
        answer = self._wires.send(Call(self._service, action, body), self._clock.signing())
        assert isinstance(answer, ServiceAnswer)
        self._clock.learn(answer)
        return answer


class Batches(ABC):
    """A target that sends messages in batches.

    Attributes:
        batch: the most messages of a request.
    """

    batch: int

    @abstractmethod
    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError or TypeError if the target can never take the message."""

    @abstractmethod
    def divide(self, messages: Sequence[OutboxMessage]) -> Iterable[Sequence[int]]:
        """Return indexes of the messages, one list for each request."""

    @abstractmethod
    def answers(self, messages: Sequence[OutboxMessage], within: float) -> Answers:
        """Make one request, and no other one after ``within`` seconds. Return the answer of each message, or one error for all."""

    @abstractmethod
    def close(self) -> None:
        """Close idle connections."""

    def send(self, messages: Sequence[OutboxMessage]) -> list[Result]:
        """Send messages, as many as possible with one request, and return the answer of each.

        What has not begun in time is not sent. If a request is refused, each of its messages is sent alone, to find the one that is
        meant.
        """
        end = boottime() + BEGIN_WITHIN
        # A version before this one may have let a message pass that the target can never take.
        results: list[Result] = [refusal_of(self, message) for message in messages]
        places = [place for place, error in enumerate(results) if error is None]
        todo = [[places[index] for index in batch] for batch in self.divide([messages[place] for place in places])]
        while todo:
            batch, remaining = todo.pop(0), end - boottime()
            answers: Answers = MessageNotSent("the requests before it took too long")
            if remaining > 0:
                answers = self.answers([messages[place] for place in batch], remaining)
            if isinstance(answers, MessageRefused) and len(batch) > 1:
                todo[:0] = [[place] for place in batch]
                continue
            for number, place in enumerate(batch):
                results[place] = answers if isinstance(answers, Exception) else answers[number]
        return results


class BatchTarget(Batches):
    """A target whose service takes many messages with one request, and answers for each.

    Attributes:
        service: the service.
        action: the one that takes many messages.
        what: what the service calls a message.
        largest: bytes of a message.
        together: bytes of a request.
        refusals: the codes that speak of a message itself.
    """

    service: Service
    action: str
    what = "record"
    largest: int
    together: int
    refusals: Collection[str]

    def __init__(self, where: str, region: str | None) -> None:
        self.where = where
        endpoint = from_environment(self.service.title.lower())  # AWS's own name, as in AWS_ENDPOINT_URL_EVENTBRIDGE
        self._client = AwsClient(self.service, region, endpoint)

    @abstractmethod
    def size(self, message: OutboxMessage) -> int:
        """Return how many bytes a message has, with its headers; raises ValueError if the target can never take it."""

    @abstractmethod
    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """Return the request that sends messages."""

    @abstractmethod
    def codes(self, answer: ServiceAnswer, count: int) -> list[tuple[str | None, str]] | None:
        """Return the code and the message for each of so many messages; the code None says that it was taken."""

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the target can never take the message."""
        if (size := self.size(message)) > self.largest:
            raise ValueError(
                f"the {self.what} has {size} bytes with its headers, and {self.service.title} takes {self.largest}"
            )

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def divide(self, messages: Sequence[OutboxMessage]) -> Iterable[Sequence[int]]:
        """See :class:`Batches`."""
        return batches(map(self.size, messages), self.batch, self.together)

    def answers(self, messages: Sequence[OutboxMessage], within: float) -> Answers:
        """See :class:`Batches`."""
        try:
            answer = self._client.ask(self.action, self.body(messages))
        except StoreError as error:
            return not_sent(self.where, error)  # nobody knows what became of it
        if answer.status != 200:
            return self._error(code_of(answer), message_of(answer))
        codes = self.codes(answer, len(messages))
        if codes is None:
            return MessageNotSent(f"{self.where}: the answer does not say what became of each {self.what}")
        return [None if code is None else self._error(code, why) for code, why in codes]

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
