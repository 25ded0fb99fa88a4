"""Clients of botocore, for the services that a person's command asks once."""

from typing import Any


def client_of(service: str, arn: str) -> Any:
    """Return a client for the region of an ARN; ImportError without botocore."""
    # botocore has no annotations
    from botocore.session import Session  # type: ignore[import-untyped]

    return Session().create_client(service, region_name=arn.split(":")[3])
