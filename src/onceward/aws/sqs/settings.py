"""The settings of a queue, and what is unsafe about them for a worker."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from onceward.core.policy import Policy

LARGEST: Final = 1048576  # bytes of a message in any queue (SQS Developer Guide, "Amazon SQS message quotas")
FEW: Final = 3  # receives that one lost worker costs: the lost one, one that finds the key busy, one that succeeds


class QueueSettings(NamedTuple):
    """The settings of a queue (SQS API Reference, SetQueueAttributes); all times are seconds."""

    name: str
    arn: str
    fifo: bool = False  # whether it is a FIFO queue
    visibility: int = 30  # for which a received message is invisible
    retention: int = 345600  # after which a message is dropped
    delay: int = 0  # before a message can be received
    wait: int = 0  # of a receive that does not say how long it waits
    dead_letters: str | None = None  # the ARN of its dead-letter queue; None if it has none
    receives: int = 0  # after how many receives a message goes there; 0 if there is no such queue
    by_content: bool = False  # whether a FIFO queue treats messages with the same content as one message
    allows: Mapping[str, object] = {}  # the RedriveAllowPolicy; empty if any queue may send its dead letters here
    largest: int = LARGEST  # the most bytes of a message

    @classmethod
    def read(cls, attributes: Mapping[str, str]) -> "QueueSettings":
        """Return the settings in the attributes of a queue."""
        arn = attributes["QueueArn"]
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return cls(
            name=arn.rpartition(":")[2],
            arn=arn,
            fifo=attributes.get("FifoQueue") == "true",
            visibility=int(attributes["VisibilityTimeout"]),
            retention=int(attributes["MessageRetentionPeriod"]),
            delay=int(attributes.get("DelaySeconds", 0)),
            wait=int(attributes.get("ReceiveMessageWaitTimeSeconds", 0)),
            dead_letters=policy.get("deadLetterTargetArn"),
            receives=int(policy.get("maxReceiveCount", 0)),  # some tools write it as text
            by_content=attributes.get("ContentBasedDeduplication") == "true",
            allows=json.loads(attributes.get("RedriveAllowPolicy") or "{}"),
            largest=int(attributes.get("MaximumMessageSize", LARGEST)),
        )

    def vain(self, lease: float, visibility: int) -> int:
        """Return how often a lost worker's message is received in vain, because its key is still claimed."""
        return max(0, math.ceil(lease / visibility) - 1)

    def spares(self, vain: int) -> bool:
        """Return whether so many receives in vain do no harm."""
        return vain == 0 or (vain == 1 and (self.dead_letters is None or self.receives > FEW))

    def warnings(self, policy: Policy, visibility: int, pause: float) -> Iterator[str]:
        """Yield what is unsafe for a worker that makes messages invisible for ``visibility`` seconds, and pauses so long."""
        days = self.retention / 86400
        tried = ((policy.max_attempts or 1) - 1) * pause
        if self.dead_letters is None and tried >= self.retention:
            yield (
                f"it has no dead-letter queue. The ledger keeps a message after {policy.max_attempts} attempts, which may take "
                f"{tried / 86400:.2g} days, but SQS drops it after {days:.2g}: give fewer max_attempts, a shorter backoff, or the "
                "queue a longer MessageRetentionPeriod or a redrive policy"
            )
        vain = self.vain(policy.lease, visibility)
        if self.dead_letters is not None and not self.spares(vain):
            yield (
                f"a worker that dies leaves its messages invisible for {visibility} s and their keys claimed for {policy.lease:g} s. "
                f"They are received {vain} time(s) in vain, and maxReceiveCount is {self.receives}: give a lease of at most "
                f"{visibility} s, or a longer visibility{', or a maxReceiveCount of 5 or more' if vain == 1 else ''}"
            )
        if policy.retention is not None and policy.retention < self.retention:
            yield (
                f"it keeps messages for {days:g} days, and the ledger forgets what is done after "
                f"{policy.retention / 86400:g}. A message that comes again later runs again: give a retention of at least "
                f"{self.retention} s"
            )
