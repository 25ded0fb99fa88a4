"""botocore clients, for services that a command calls once."""

from typing import Any


def client_of(service: str, arn: str) -> Any:
    """Return a client for the region of an ARN. Raises ImportError without botocore."""
    # botocore has no annotations
    from botocore.session import Session  # type: ignore[import-untyped]

    return Session().create_client(service, region_name=arn.split(":")[3])
