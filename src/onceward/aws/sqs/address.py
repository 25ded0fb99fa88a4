"""How people name a queue: its name, its ARN or its URL."""

import re
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")  # SQS API Reference, CreateQueue
_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):([0-9]+):(.+)")
# AWS General Reference, "Amazon SQS endpoints and quotas": the endpoints there are, with FIPS, dual stack and VPC ones, and
# the legacy ones, which newer features do not reach.
_REGION: Final = re.compile(r"(?:^|\.)sqs(?:-fips)?\.([a-z]+(?:-[a-z]+)+-[0-9]+)\.")
_OWN: Final = re.compile(r"sqs\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?")
_LEGACY: Final = re.compile(r"(?:([a-z0-9-]+)\.)?queue\.amazonaws\.com(?:\.cn)?")


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


def address_of(queue: str, region: str | None = None) -> Address:
    """Return what a queue's name, ARN or URL says; ``region`` is the caller's.

    Raises:
        ValueError: it is none of these, or it is in another region.
    """
    if "://" in queue:
        found = _of_url(queue)
    elif arn := _ARN.fullmatch(queue):
        found = Address(arn[3], None, arn[2], arn[1])
    else:
        found = Address(queue)
    if not _NAME.fullmatch(found.name):
        raise ValueError(
            f"{queue!r} is not a queue: give its URL, its ARN, or its name (80 letters, digits, '-' and '_')"
        )
    if region and found.region and region != found.region:
        raise ValueError(f"{queue!r} is in {found.region}, and region={region!r}: leave region= out")
    return found._replace(region=region or found.region)


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
    if legacy := _LEGACY.fullmatch(host):
        return Address(name, url, None, legacy[1] or "us-east-1")
    region = _REGION.search(host)
    endpoint = None if _OWN.fullmatch(host) else f"{parts.scheme}://{parts.netloc}"
    return Address(name, url, None, region and region[1], endpoint)
