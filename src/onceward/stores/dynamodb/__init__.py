"""A ledger in Amazon DynamoDB: ``Once("dynamodb://TABLE?region=eu-west-1")``, or :func:`open_table` for all options."""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, urlencode

from onceward.core.arguments import check_type
from onceward.core.clock import Clock, boottime
from onceward.core.urls import shown_url
from onceward.stores import StoreUrl
from onceward.stores.dynamodb.blobs import Blobs
from onceward.stores.dynamodb.items import Layout
from onceward.stores.dynamodb.store import DynamoStore
from onceward.wire.wires import opened

__all__ = ["open_table", "open_url"]

_PUNCTUATION = str.maketrans("_-.", "000")
OPTIONS = ("region", "endpoint", "preset", "partition", "sort", "blobs", "probe", "timeout")


def open_table(
    table: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    preset: str | None = None,
    partition: str | None = None,
    sort: str | None = None,
    names: Mapping[str, str] | None = None,
    blobs: str | None = None,
    probe: Literal["read"] | None = None,
    client: object = None,
    timeout: float = 5.0,
    clock: Clock = boottime,
) -> DynamoStore:
    """Return the ledger in a DynamoDB table. Nothing is sent before its first use.

    Args:
        table: the table's name; ``onceward init`` creates it.
        region: the AWS region; default from AWS_REGION, AWS_DEFAULT_REGION or the profile.
        endpoint: a URL instead of the region's own, as for a test server.
        preset: "powertools": the table is, or was, one of Powertools (docs/how-to/migrate.md).
        partition: the partition key, as ``name={key}`` or ``name=prefix{key}``; default ``key={key}``. In a URL, a ``+`` is
            a plus, and you write ``#`` as ``%23``: ``partition=pk=a+b%23{key}``.
        sort: the table's sort key, if any, as ``name=text``; or as ``name={key}`` if it holds the key.
        names: attribute names for fields of the record, where they differ; with a preset, for Powertools' attributes, such
            as ``expiration``.
        blobs: ``s3://bucket/prefix`` for results too large for an item (400 KB). With it, results of up to 16 MiB are
            stored, without it 256 KiB, unless ``max_result`` says otherwise.
        probe: "read" makes an eventually consistent read before each claim. It costs a tenth of a refused write, so use it
            if more than a tenth of the messages are duplicates.
        client: a boto3 DynamoDB client for all requests, as for an HTTP proxy. Its settings and credentials replace region,
            endpoint and timeout. It takes no ``blobs``.
        timeout: seconds for one try of one request.
        clock: the owner's clock (seconds); for tests.

    Raises:
        ValueError, TypeError: an option is not valid.
    """
    if probe not in {None, "read"}:
        raise ValueError(f'probe={probe!r}: give "read", or leave it out')
    check_type("open_table(table)", table, str, "the table's name")
    if not table:
        raise ValueError("the table has no name: write dynamodb://TABLE?region=REGION")
    if not table.isascii() or not table.translate(_PUNCTUATION).isalnum():
        raise ValueError(f"{table!r} is not the name of a table: it has letters, digits, '_', '-' and '.' only")
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout={timeout!r}: give a positive number of seconds")
    if client is not None and blobs is not None:
        raise ValueError("blobs= does not go with client=, which reaches DynamoDB alone")
    options = {"region": region, "endpoint": endpoint, "preset": preset, "partition": partition, "sort": sort}
    options |= {f"name.{field}": name for field, name in (names or {}).items()} | {"blobs": blobs, "probe": probe}
    query = urlencode({name: value for name, value in options.items() if value}, safe=":/{}=", quote_via=quote)
    if preset not in {None, "powertools"}:
        raise ValueError(f'preset={preset!r}: give "powertools", or leave it out')
    if preset is None:
        layout = Layout(partition or "key={key}", sort, names)
    else:
        from onceward.stores.dynamodb.powertools import Powertools

        layout = Powertools(partition or "id={key}", sort, names)
    if client is None:
        wires = opened(region, timeout=timeout, clock=clock, dynamodb=endpoint, s3=None)
    else:
        from onceward.stores.dynamodb.sdk import through

        wires = through(client, clock)
    return DynamoStore(
        table,
        wires,
        layout=layout,
        blobs=None if blobs is None else Blobs(blobs),
        probe=probe is not None,
        url=f"dynamodb://{table}{query and '?'}{query}",
        clock=clock,
    )


def open_url(parts: StoreUrl, options: dict[str, str]) -> DynamoStore:
    """Open ``dynamodb://TABLE`` with the options of :func:`open_table`. Write ``names`` as ``name.FIELD=ATTRIBUTE``.

    For special characters, see :func:`onceward.stores.open_store`.

    Raises:
        ValueError: the URL has a path or an unknown option, or an option is not valid.
    """
    url = shown_url(parts.geturl())
    if parts.path.strip("/") or "@" in parts.netloc or ":" in parts.netloc:
        raise ValueError(f"{url!r}: write dynamodb://TABLE?region=REGION, with endpoint=URL for another server")
    names = {key.removeprefix("name."): value for key, value in options.items() if key.startswith("name.")}
    unknown = options.keys() - set(OPTIONS) - {f"name.{field}" for field in names}
    if unknown:
        choices = ", ".join(OPTIONS)
        raise ValueError(f"{url!r}: unknown option {', '.join(sorted(unknown))}; there are {choices} and name.FIELD")
    try:
        timeout = float(options.get("timeout", "5"))
    except ValueError:
        raise ValueError(f"{url!r}: timeout must be a number of seconds") from None
    arguments: dict[str, Any] = {name: options[name] for name in OPTIONS if name in options}
    return open_table(parts.netloc, **{**arguments, "names": names or None, "timeout": timeout})
