"""Making a Redis ledger ahead of its first use."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from onceward.core.drivers import Steps, drive
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.redis.schema import version_of

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore


def found(store: "RedisStore") -> bool:
    """Return whether the ledger is there (:data:`onceward.stores.capabilities.FOUND`)."""
    return drive(version_of(store.names), store.bare) is not None


def provision(store: "RedisStore", options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the ledger (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    made = yield from store.prepared()
    return [Part(f"ledger {store.names.prefix}", made)]


def migrate(store: "RedisStore") -> Steps[list[Part]]:
    """Check the version, since there is no earlier one (:data:`onceward.stores.capabilities.MIGRATE`)."""
    made = yield from store.prepared()
    return [Part(f"ledger {store.names.prefix}", made)]
