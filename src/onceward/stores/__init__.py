"""The stores, and how a URL opens one."""

from importlib import import_module
from typing import cast

from onceward.stores.contract import Store

# scheme → module and function; imported when first asked for, so that `import onceward` loads no driver
OPENERS = {
    "dynamodb": ("onceward.stores.dynamodb", "open_url"),
    "memory": ("onceward.stores.memory", "open_url"),
    "sqlite": ("onceward.stores.sqlite.store", "open_url"),
}


def open_store(url: str) -> Store:
    """Open the store that ``url`` names.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, each with ``?timeout=SECONDS`` and
            ``?synchronous=FULL|NORMAL``; ``dynamodb://TABLE?region=REGION`` with the options of
            ``onceward.stores.dynamodb.open_table``; or ``memory:``. A ``+`` is a plus; ``%``, ``#``, ``&``, ``?`` and a space
        are written ``%25``, ``%23``, ``%26``, ``%3F`` and ``%20`` where they are part of a name or value.

    Raises:
        ValueError: the URL is not one of these forms, or has a fragment, an option twice, or one without a value.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in OPENERS:
        known = ", ".join(sorted(OPENERS))
        raise ValueError(f"{url!r} names no store: its scheme must be one of {known}, as in sqlite:///orders.db")
    if "#" in url:
        raise ValueError(f"{url!r}: a # ends a URL, and what follows would be ignored: write it %23")
    module, function = OPENERS[parts.scheme]
    return cast("Store", getattr(import_module(module), function)(parts, _options(url, parts.query)))


def _options(url: str, query: str) -> dict[str, str]:
    """Return the options of a URL; unlike in an HTML form, a plus in them is a plus."""
    from urllib.parse import unquote

    options: dict[str, str] = {}
    for text in filter(None, query.split("&")):
        name, _, value = text.partition("=")
        name = unquote(name)
        if name in options:
            raise ValueError(f"{url!r}: {name} is given twice")
        if not value:
            raise ValueError(f"{url!r}: {name} has no value: give it one, or leave it out")
        options[name] = unquote(value)
    return options
