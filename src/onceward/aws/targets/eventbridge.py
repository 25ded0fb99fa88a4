"""EventBridge buses as targets."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from onceward.aws.targets.sending import (
    AwsClient,
    Told,
    by_size,
    enveloped,
    options_of,
    send_batches,
    told_of,
    unanswered,
)
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage
from onceward.wire.calls import Service
from onceward.wire.codes import code_of, message_of, short
from onceward.wire.endpoints import from_environment

_EVENTS: Final = Service("EventBridge", "events", "AWSEvents", "1.1")
_BUS: Final = re.compile(r"(?:arn:[a-z-]+:events:([a-z0-9-]+):[0-9]{12}:event-bus/)?[/.\-_A-Za-z0-9]{1,256}")
_ENTRIES: Final = 10  # of a request (EventBridge API Reference, PutEvents)
_LARGEST: Final = 256 * 1024  # bytes of a request (EventBridge User Guide, "Calculating PutEvents event entry size")
# EventBridge API Reference, PutEventsResultEntry and "Common Errors". Of the errors that it calls not retryable, those about an
# account or a permission can be fixed without the message.
_REFUSED: Final = frozenset({"InvalidArgument", "MalformedDetail", "RedactionFailure", "Validation", "ValidationError"})


class BusTarget:
    """A bus. A message is the ``detail`` of an event, so it must be a JSON object.

    Its key and headers are the member ``onceward`` of the detail, which :func:`onceward.aws.on_eventbridge` takes out. EventBridge
    answers that it has taken an event also if no rule matches it.

    Args:
        address: ``eventbridge:BUS?source=SOURCE&detail-type=TYPE``; BUS is a name or an ARN. ``region=`` is for a bus with a name
            that is not in the region of the environment.

    Raises:
        ValueError: the address is not valid.
    """

    batch = _ENTRIES

    def __init__(self, address: str) -> None:
        self._bus, options = options_of(address, {"source", "detail-type", "region"})
        found = _BUS.fullmatch(self._bus)
        source, kind = options.get("source", ""), options.get("detail-type", "")
        if found is None or not source or not kind:
            raise ValueError(
                f"{shown_url(address)!r} is not a bus: give its name or ARN, source= and detail-type=, as in "
                "eventbridge:orders?source=shop&detail-type=Paid"
            )
        if source.startswith("aws.") or len(source) > 256 or len(kind) > 128:
            raise ValueError(
                f"{shown_url(address)!r}: a source has up to 256 characters and does not begin with aws., a detail-type has up to 128"
            )
        self._entry = {"EventBusName": self._bus, "Source": source, "DetailType": kind}
        self._client = AwsClient(_EVENTS, found[1] or options.get("region"), from_environment("eventbridge"))

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the bus can never take the message."""
        for name in ("delay", "group"):
            if getattr(message, name) is not None:
                raise ValueError(f"{self._bus}: EventBridge has no {name}=; leave it out")
        if (size := self._size(_detail(message))) > _LARGEST:
            raise ValueError(f"the event has {size} bytes with its headers, and EventBridge takes {_LARGEST}")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Told]:
        """Put events, ten with one request."""
        return send_batches(messages, self.check, self._divided, self._batch)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _divided(self, messages: list[OutboxMessage]) -> list[list[int]]:
        return by_size([self._size(_detail(message)) for message in messages], _ENTRIES, _LARGEST)

    def _size(self, detail: str) -> int:
        return sum(len(text.encode()) for text in (self._entry["Source"], self._entry["DetailType"], detail))

    def _batch(self, messages: list[OutboxMessage], _: float) -> list[Told] | MessageRefused | MessageNotSent:
        entries = [{**self._entry, "Detail": _detail(message)} for message in messages]
        try:
            answer = self._client.ask("PutEvents", {"Entries": entries})
        except StoreError as error:
            return unanswered(self._bus, error)
        if answer.status != 200:
            return told_of(self._bus, code_of(answer), message_of(answer), _REFUSED)
        found = cast("Mapping[str, list[Mapping[str, str]]]", answer.body).get("Entries") or []
        if len(found) != len(messages):
            return MessageNotSent(f"{self._bus}: the answer does not say what became of each message")
        return [
            None
            if one.get("EventId")
            else told_of(self._bus, short(one.get("ErrorCode") or "no code"), one.get("ErrorMessage") or "", _REFUSED)
            for one in found
        ]


def _detail(message: OutboxMessage) -> str:
    """Return the detail of a message's event; raises ValueError if it cannot have one."""
    return enveloped(message, "EventBridge")
