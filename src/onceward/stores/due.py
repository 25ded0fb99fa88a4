"""Where a page of due messages goes on, in the stores that sort them by ``due_at`` and key."""


def token_of(due_at: float, key: str) -> str:
    """Return the ``next`` of a page that ends with this record."""
    return f"{due_at!r} {key}"


def point_of(after: str | None) -> tuple[float, str]:
    """Return the ``due_at`` and the key after which a page begins."""
    if after is None:
        return 0.0, ""
    due_at, _, key = after.partition(" ")
    return float(due_at), key
