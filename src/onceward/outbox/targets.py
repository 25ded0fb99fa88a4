"""The targets of messages: what a target can do, and the registry that opens one by its address.

A target's address begins with its scheme, such as ``sqs:orders``. Modules of targets are imported when the first
message needs them, so ``import onceward`` loads none.
"""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.errors import OncewardError
from onceward.lazily import at

# Scheme → module and function. The function takes the address, and returns the target.
TARGETS: Final = {
    "amqp": "onceward.rabbitmq.target:RabbitTarget",
    "amqps": "onceward.rabbitmq.target:RabbitTarget",
    "eventbridge": "onceward.aws.targets.records:BusTarget",
    "firehose": "onceward.aws.targets.records:FirehoseTarget",
    "http": "onceward.outbox.http_target:HttpTarget",
    "https": "onceward.outbox.http_target:HttpTarget",
    "kafka": "onceward.kafka.target:KafkaTarget",
    "kinesis": "onceward.aws.targets.records:KinesisTarget",
    "nats": "onceward.nats.target:NatsTarget",
    "redis-stream": "onceward.redis_streams.target:RedisStreamTarget",
    "rediss-stream": "onceward.redis_streams.target:RedisStreamTarget",
    "sns": "onceward.aws.targets.queues:SnsTarget",
    "sqs": "onceward.aws.targets.queues:SqsTarget",
    "task": "onceward.outbox.tasks:TaskTarget",
}
SENT_WITHIN: Final = 10.0  # seconds: the longest time of one send of our own targets
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")  # as in a URL (RFC 3986, 3.1)


class OutboxMessage(NamedTuple):
    """A message as a target sends it.

    Attributes:
        key: its idempotency key: 36 ASCII characters, the same each time it is sent.
        body: its text; JSON, unless the handler gave text.
        headers: text by name; among them those of :mod:`onceward.core.origin`.
        delay: seconds before it can be received; None is the target's own.
        group: the messages of one group keep their order, if the target can do that.
    """

    key: str
    body: str
    headers: Mapping[str, str] = {}
    delay: float | None = None
    group: str | None = None


class MessageRefused(OncewardError):
    """The target will never take this message. It is sent again only if a person decides this.

    Cause: The target answered that this message is wrong, such as HTTP's 400.

    Fix: Fix the cause. Then run ``onceward relay --retry KEY``, or ``--drop KEY``.
    """


class MessageNotSent(OncewardError):
    """The message was not sent, or nobody knows whether it was sent. It is sent again later.

    Cause: The target cannot be reached, is busy, or its answer was lost.

    Fix: Wait: the message is sent again later. If this error comes again and again, check whether this machine can
    reach the target.

    Attributes:
        retry_after: seconds to wait at least, if the target has said so.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Target(Protocol):
    """Where messages go. Any number of threads can use one.

    Attributes:
        batch: how many messages one :meth:`send` takes at most.
    """

    batch: int

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError or TypeError if the target can never take this message. It makes no request."""

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Send messages, all with one request if possible, and return the answer of each, in its place.

        None: it was sent. A :class:`MessageRefused`: never send it again. Any other error: send it again later. One
            message of a
        call can fail alone, so messages that need an order do not share a call. It must raise nothing, and must end:
        onceward's own targets end within :data:`SENT_WITHIN` seconds.
        """

    def close(self) -> None:
        """Close idle connections; the next send opens new ones."""


Factory = Callable[[str], Target]
_lock = threading.RLock()  # reentrant: a signal handler may send in this thread
_registered: Final[dict[str, Factory]] = {}
_opened: Final[dict[str, Target]] = {}
_MOST: Final = 1000  # targets that are kept: addresses can have numbers in them


def register(scheme: str, factory: Factory) -> None:
    """Register targets of your own: ``register("mail", open_mail)``, then ``claim.send("mail:orders@shop.example", ...)``.

    Args:
        scheme: what an address begins with, before the first colon: lower-case letters, digits, ``+``, ``.`` and ``-``.
        factory: takes the whole address and returns a :class:`Target`; raises ValueError if the address is not valid.
            It replaces an earlier one of this scheme.

    Raises:
        ValueError: the scheme is not valid, or one of onceward's own.
    """
    check_type("register(scheme)", scheme, str, 'a text such as "mail"')
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(f'scheme={scheme!r}: give lower-case letters, digits, "+", "." and "-", as in "mail"')
    if scheme in TARGETS:
        raise ValueError(f"{scheme}: is one of onceward's own targets; give yours another scheme")
    with _lock:
        _registered[scheme] = factory
        for address in [address for address in _opened if scheme_of(address) == scheme]:
            del _opened[address]


def open_target(address: str) -> Target:
    """Return the target at an address. The same address gets the same target, with its connections.

    Args:
        address: ``sqs:`` and a queue's name, URL or ARN; ``sns:`` and a topic's ARN;
            ``eventbridge:BUS?source=shop&detail-type=Paid``; ``kinesis:`` and ``firehose:`` with a stream's name;
            ``amqp:`` and a queue of RabbitMQ; an ``https://`` or ``http://`` URL; ``task:MODULE:NAME``; or one that
            begins with a scheme of :func:`register`.

    Raises:
        ValueError: the scheme is not known, or the address is not valid.
        TypeError: it is not text.
    """
    known = _opened.get(address)
    if known is not None:
        return known
    scheme = scheme_of(address)
    registered = _registered.get(scheme)
    if registered is None and scheme not in TARGETS:
        schemes = ", ".join(sorted(TARGETS | _registered))
        raise ValueError(
            f"{shown_url(address)!r} names no target: its scheme must be one of {schemes}. onceward.outbox.register() adds others, and "
            "each process that sends must call it"
        )
    factory = registered or cast("Factory", at(TARGETS[scheme]))
    opened = factory(address)  # without the lock: it can import a module that calls register()
    with _lock:
        first = _opened.setdefault(address, opened) if _registered.get(scheme) is registered else opened
        dropped = [] if first is opened else [opened]
        while len(_opened) > _MOST:  # a send that runs fails at worst, and is tried again
            dropped.append(_opened.pop(next(iter(_opened))))
    for target in dropped:  # it can wait for a server
        threading.Thread(target=target.close, name="onceward-targets-close", daemon=True).start()
    return first


def refusal_of(target: Target, message: OutboxMessage) -> MessageRefused | None:
    """Return why a target can never take a message; None if it can."""
    try:
        target.check(message)
    except (ValueError, TypeError) as error:
        return MessageRefused(str(error))
    return None


def refuse_options(whose: str, message: OutboxMessage, *names: str) -> None:
    """Raise ValueError if a message has a delay or a group, and the target has no such thing."""
    for name in names:
        if getattr(message, name) is not None:
            raise ValueError(f"{whose} has no {name}=; leave it out")


def is_json(content: bytes) -> bool:
    """Return whether a body is JSON."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError):
        return False
    return True


def not_sent(where: str, error: BaseException) -> MessageNotSent:
    """Return the answer for a message whose send has raised ``error``."""
    answer = MessageNotSent(f"{where}: {str(error) or type(error).__name__}")
    answer.__cause__ = error
    return answer


def answers_of(
    target: Target,
    messages: Sequence[OutboxMessage],
    send: Callable[[list[OutboxMessage]], Sequence[Exception | None]],
    answer_of: Callable[[Exception], Exception],
) -> list[Exception | None]:
    """Return the answers of ``messages``, each in its place.

    Args:
        target: refuses what it can never take.
        messages: what to send.
        send: sends the others together, and returns the answer of each. What it raises is the answer of all.
        answer_of: makes an answer of an error that is none.
    """
    answers: list[Exception | None] = [refusal_of(target, message) for message in messages]
    fit = [place for place, refusal in enumerate(answers) if refusal is None]
    sent: Sequence[Exception | None]
    try:
        sent = send([messages[place] for place in fit]) if fit else []
    except Exception as error:  # whatever the client raises: it is sent again later
        sent = [error] * len(fit)
    for place, one in zip(fit, sent, strict=True):
        answers[place] = one if one is None or isinstance(one, MessageRefused | MessageNotSent) else answer_of(one)
    return answers


def scheme_of(address: str) -> str:
    """Return what an address begins with; "" if it has no scheme."""
    if not isinstance(address, str):
        raise TypeError(f"a target is text such as 'sqs:orders', not {type(address).__name__}")
    scheme, colon, _ = address.partition(":")
    return scheme if colon else ""


def _forked() -> None:
    global _lock  # another thread of the parent may have held it
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
