"""Making a Redis ledger ahead of its first use."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from onceward.core.drivers import Steps, drive
from onceward.errors import StoreError
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.redis.schema import version_of

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore


def found(store: "RedisStore") -> bool:
    """Return whether the ledger is there (:data:`onceward.stores.capabilities.FOUND`)."""
    return drive(version_of(store.names), store.bare) is not None


def outbox(store: "RedisStore") -> Steps[None]:
    """Check that messages are safe here (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use looks at the server
    if store.loses_messages:
        raise StoreError(
            f"ledger {store.url}: the server may evict any key (maxmemory-policy allkeys-…), also messages that are not sent yet: "
            "set maxmemory-policy noeviction to send messages with a record"
        )


def provision(store: "RedisStore", options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the ledger (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    made = yield from store.prepared()
    return [Part(f"ledger {store.names.prefix}", made)]


def migrate(store: "RedisStore") -> Steps[list[Part]]:
    """Check the version, since there is no earlier one (:data:`onceward.stores.capabilities.MIGRATE`)."""
    made = yield from store.prepared()
    return [Part(f"ledger {store.names.prefix}", made)]
