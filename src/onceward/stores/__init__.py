"""The stores, and how a URL opens one."""

from importlib import import_module
from typing import cast

from onceward.stores.contract import Store

# scheme → module and function; imported when first asked for, so that `import onceward` loads no driver
OPENERS = {
    "dynamodb": ("onceward.stores.dynamodb", "open_url"),
    "memory": ("onceward.stores.memory", "open_url"),
    "sqlite": ("onceward.stores.sqlite", "open_url"),
}


def open_store(url: str) -> Store:
    """Open the store that ``url`` names.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, each with ``?timeout=SECONDS`` and
            ``?synchronous=FULL|NORMAL``; ``dynamodb://TABLE?region=REGION`` with the options of
            ``onceward.stores.dynamodb.open_table``; or ``memory:``.

    Raises:
        ValueError: the URL is not one of these forms.
    """
    from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415 - 3 ms that a store object does without

    parts = urlsplit(url)
    if parts.scheme not in OPENERS:
        known = ", ".join(sorted(OPENERS))
        raise ValueError(f"{url!r} names no store: its scheme must be one of {known}, as in sqlite:///orders.db")
    module, function = OPENERS[parts.scheme]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    return cast("Store", getattr(import_module(module), function)(parts, options))
