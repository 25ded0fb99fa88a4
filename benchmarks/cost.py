"""What a ledger in DynamoDB costs a month on demand, by the formula of docs/explanation/scale.md.

Run: python benchmarks/cost.py [--messages 1000000] [--duplicates 5] [--result 100] [--days 14] [--unit 0.625] [--gb 0.25]
The prices are the list prices of us-east-1 of 2024-11-01, for a million write units and for a GB.
"""

import argparse
import math

RECORD = 320  # bytes of a record besides its result
MONTH = 365.25 / 12  # days


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default, what in (
        ("messages", 1_000_000, "a day, duplicates included"),
        ("duplicates", 5.0, "percent of them"),
        ("result", 100, "bytes"),
        ("days", 14, "of retention"),
        ("unit", 0.625, "USD for a million write units"),
        ("gb", 0.25, "USD for a GB a month"),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{what}; default {default}")
    asked = parser.parse_args()
    new = asked.messages * (1 - asked.duplicates / 100)
    size = RECORD + asked.result
    units = (2 * new + (asked.messages - new)) * math.ceil(size / 1024) * MONTH
    stored = new * asked.days * size / 1e9
    print(
        f"{units / 1e6:.1f} M write units, {stored:.1f} GB: {units / 1e6 * asked.unit + stored * asked.gb:.2f} USD a month"
    )


if __name__ == "__main__":
    main()
