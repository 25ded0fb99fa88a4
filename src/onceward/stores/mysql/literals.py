"""Values as SQL. They mean the same under every sql_mode and character set of a session, and no text can end early."""


def literal(value: object) -> str:
    """Return a text, a number or None as SQL.

    Raises:
        ValueError: the text has a surrogate, which no encoding keeps.
    """
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return repr(value)
    if value.isascii() and "'" not in value and "\\" not in value and "\0" not in value:
        return f"'{value}'"
    return f"_utf8mb4 x'{value.encode().hex()}'"


def microseconds(seconds: float) -> int:
    """Return a time as the ledger keeps it."""
    return round(seconds * 1e6)
