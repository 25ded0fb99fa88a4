"""The places in an event that a mutation can change."""


def places(value, path=()):
    """Yield the path of everything in an event."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))
