"""What a queue's name, ARN or URL says, and the service behind it."""

import re
from typing import Final, NamedTuple

from onceward.wire.calls import Service

SQS: Final = Service("SQS", "sqs", "AmazonSQS")  # its JSON protocol, of 2012-11-05
LOCATE: Final = "GetQueueUrl"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")  # SQS API Reference, CreateQueue
_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):([0-9]+):(.+)")
# AWS General Reference, "Amazon SQS endpoints and quotas": the endpoints there are, with FIPS, dual stack and VPC ones.
_REGION: Final = re.compile(r"(?:^|\.)sqs(?:-fips)?\.([a-z]+(?:-[a-z]+)+-[0-9]+)\.")
_OWN: Final = re.compile(r"sqs\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?")


class Address(NamedTuple):
    """What a queue's name, ARN or URL says."""

    name: str
    url: str | None = None  # None if it must be requested
    account: str | None = None  # of the queue; None is the caller's own
    region: str | None = None  # of the queue; None if it is not in the text
    endpoint: str | None = None  # where requests go by default; None is the region's own endpoint

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue, by its name."""
        return self.name.endswith(".fifo")

    @property
    def owned(self) -> dict[str, object]:
        """The parameters of the request for its URL."""
        owner = {} if self.account is None else {"QueueOwnerAWSAccountId": self.account}
        return {"QueueName": self.name, **owner}


def address_of(queue: str, region: str | None = None) -> Address:
    """Return what a queue's name, ARN or URL says; ``region`` is the caller's.

    Raises:
        ValueError: it is none of these, or it is in another region.
    """
    if "://" in queue:
        address = _of_url(queue)
    elif arn := _ARN.fullmatch(queue):
        address = Address(arn[3], None, arn[2], arn[1])
    else:
        address = Address(queue)
    if not _NAME.fullmatch(address.name):
        raise ValueError(
            f"{queue!r} is not a queue: give its URL, its ARN, or its name (80 letters, digits, '-' and '_')"
        )
    if region and address.region and region != address.region:
        raise ValueError(f"{queue!r} is in {address.region}, and region={region!r}: leave region= out")
    return address._replace(region=region or address.region)


def _of_url(url: str) -> Address:
    try:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return Address("")
    name = parts.path.rstrip("/").rpartition("/")[2]
    if parts.scheme not in {"http", "https"} or not host:
        return Address("")
    region = _REGION.search(host)
    endpoint = None if _OWN.fullmatch(host) else f"{parts.scheme}://{parts.netloc}"
    return Address(name, url, None, region and region[1], endpoint)
