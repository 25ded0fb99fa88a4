"""The figures of the start page, from docs/reference/measured.md."""

from pathlib import Path

from generated.markdown import table

_MEASURED = Path(__file__).parents[1] / "reference" / "measured.md"
_ROWS = (  # the beginning of a row there, and what the start page calls it
    (
        "requests of a first call, a duplicate, a failed call",
        "requests to DynamoDB: first call, duplicate, failed call",
    ),
    ("client CPU of a first call; of a duplicate", "CPU of a first call; of a duplicate (µs)"),
    ("a batch of 10 new records", "a batch of 10 new records, 5 ms from the ledger"),
    ("1,000 messages, 64 connections", "1,000 messages on DynamoDB (seconds)"),
    ("a worker that drains 1,000 messages", "an SQS worker: messages a second (coroutines; functions)"),
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
