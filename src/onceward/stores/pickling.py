"""How a store travels to another process: as its URL, which contains its password. There, one store serves all that came by it."""

import os
import platform
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.stores import open_store, url_parts

if TYPE_CHECKING:
    from onceward.stores.contract import Store

_INSTEAD: Final = "To pickle a Once, or a function that it guards, make it of a URL of a server, as in Once('postgresql://worker@db/shop')"
_ARRIVED: Final[dict[str, "Store"]] = {}
_LOCK: Final = threading.Lock()


class StorePlace(NamedTuple):
    """What a pickle has of a store. ``machine`` is where it counts; "" is everywhere."""

    url: str
    machine: str = ""


def place_of(url: str | None, label: str) -> StorePlace:
    """Return the place of a store.

    Args:
        url: what opened it; None if it is an object of the caller's.
        label: the store's URL for messages.

    Raises:
        TypeError: another process would have another store.
    """
    if url is None:
        raise TypeError(
            f"{label}: this ledger is an object of this process, such as a connection, and cannot be pickled. {_INSTEAD}"
        )
    parts, _ = url_parts(url)
    if parts.scheme == "memory":
        raise TypeError(
            f"memory: cannot be pickled, because another process would have a ledger of its own. {_INSTEAD}"
        )
    if parts.scheme != "sqlite":
        return StorePlace(url)
    from urllib.parse import quote, unquote

    path = os.path.abspath(unquote(parts.path.removeprefix("/")))
    return StorePlace(parts._replace(path=f"/{quote(path)}").geturl(), platform.node())


def open_place(place: StorePlace) -> "tuple[Store, bool]":
    """Return the store of a pickle, and whether it is the first one here by that URL.

    Raises:
        TypeError: its file is on another machine.
    """
    if place.machine not in {"", platform.node()}:
        raise TypeError(
            f"a ledger in an SQLite file of {place.machine} was unpickled on {platform.node()}, which has another file. {_INSTEAD}"
        )
    with _LOCK:
        cached = _ARRIVED.get(place.url)
        store = _ARRIVED[place.url] = cached or open_store(place.url)
    return store, cached is None
