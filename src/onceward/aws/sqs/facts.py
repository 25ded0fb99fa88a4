"""What a worker needs to know of its queue, and what of it is unsafe."""

import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from onceward.core.policy import Policy

ATTEMPTS: Final = 10  # calls until a key is parked, without a redrive policy or an option
_FEW = 3  # receives that one lost worker costs: the lost one, one that finds the key busy, one that succeeds


class QueueFacts(NamedTuple):
    """Some attributes of a queue (SQS API Reference, GetQueueAttributes).

    Attributes:
        arn: its ARN.
        visibility: seconds for which a received message is invisible.
        retention: seconds after which it drops a message.
        receives: after how many receives a message goes to its dead-letter queue; None when it has none.
    """

    arn: str
    visibility: int
    retention: int
    receives: int | None

    @property
    def region(self) -> str:
        """Where it is."""
        return (self.arn.split(":") + [""] * 4)[3]


def read_facts(attributes: Mapping[str, str]) -> QueueFacts:
    """Return the facts that the attributes of a queue tell."""
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    receives = policy.get("maxReceiveCount") if isinstance(policy, dict) else None
    return QueueFacts(
        attributes.get("QueueArn", ""),
        int(attributes.get("VisibilityTimeout", 30)),
        int(attributes.get("MessageRetentionPeriod", 345600)),
        None if receives is None else int(receives),  # some tools write it as text
    )


def bounded(facts: QueueFacts, policy: Policy) -> Policy:
    """Return the policy for a queue: without a dead-letter queue, it limits the attempts."""
    if facts.receives is not None or policy.max_attempts is not None:
        return policy
    return policy._replace(max_attempts=ATTEMPTS)


def warnings(facts: QueueFacts, policy: Policy, visibility: int, pause: float) -> Iterator[str]:
    """Yield what is unsafe about a queue, handled under ``policy``.

    Args:
        facts: of the queue.
        policy: as :func:`bounded` returns it.
        visibility: seconds for which messages are invisible.
        pause: seconds for which one stays away, at most.
    """
    days = facts.retention / 86400
    if facts.receives is None:
        tried = ((policy.max_attempts or 1) - 1) * pause
        if tried >= facts.retention:
            yield (
                f"it has no dead-letter queue, so messages are kept in the ledger after {policy.max_attempts} attempts, which may "
                f"take {tried / 86400:.2g} days, and SQS drops them after {days:.2g}: give fewer max_attempts, a shorter backoff, "
                "or the queue a longer MessageRetentionPeriod or a redrive policy"
            )
    elif facts.receives <= _FEW and policy.lease > visibility:
        yield (
            f"a worker that dies leaves its messages invisible for {visibility} s and their keys claimed for {policy.lease:g} s, so "
            f"they are received in vain in between, and maxReceiveCount is {facts.receives}: give a lease of at most "
            f"{visibility} s, a longer visibility, or a maxReceiveCount of 5 or more"
        )
    if policy.retention is not None and policy.retention < facts.retention:
        yield (
            f"it keeps messages for {days:g} days, and the ledger forgets what is done after "
            f"{policy.retention / 86400:g}: one that comes again after that runs again. Give a retention of at least "
            f"{facts.retention} s"
        )
