"""The figures of the start page, from docs/reference/measured.md."""

from pathlib import Path

from generated.markdown import table

_MEASURED = Path(__file__).parents[1] / "reference" / "measured.md"
_ROWS = (  # the beginning of a row there, and what the start page calls it
    ("requests of a first call", "requests to DynamoDB: a first call"),
    ("requests of a duplicate", "requests to DynamoDB: a duplicate"),
    ("client CPU of a first call, µs", "client CPU of a first call on DynamoDB, µs"),
    ("client CPU of a duplicate, µs", "client CPU of a duplicate on DynamoDB, µs"),
    ("a batch of 10 new records", "a batch of 10 new records, 5 ms from the ledger"),
    ("1,000 messages, 64 connections", "1,000 messages on DynamoDB"),
    ("messages a second (onceward: coroutines)", "an SQS worker: messages a second"),
)


def part() -> str:
    """Return the table."""
    lines = _MEASURED.read_text(encoding="utf-8").splitlines()
    rows = []
    for begins, name in _ROWS:
        line = next(line for line in lines if line.startswith(f"| {begins}"))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append((name, *cells[-3:]))
    return table(("", "onceward", "Powertools", "idemkit"), rows)
