"""How long `import onceward` takes, in fresh processes, beside bare Python, `import json` and `import boto3`.

Run: python benchmarks/import_time.py
boto3 is measured when it is installed (pip install boto3). Goal: under 40 ms more than bare Python.
"""

import os
import statistics
import subprocess
import sys
import time

from measure import table

CASES = {
    "bare Python": "pass",
    "import json": "import json",
    "import onceward": "import onceward",
    "import onceward, Once(url)": "import onceward; onceward.Once('sqlite:///x.db')",
    "import onceward, first guard": (
        "import onceward\nonce = onceward.Once('sqlite:///x.db')\n@once(key=lambda x: x)\ndef f(x): ..."
    ),
    "import boto3": "import boto3",
}
NEVER = ("boto3", "botocore", "typer", "rich", "asyncio", "psycopg", "redis", "urllib3", "aiohttp")
ROUNDS = 21
# What is installed has its bytecode beside it; so has a source tree from the second time on, unless this forbids it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main() -> None:
    cases = dict(CASES)
    if subprocess.run([sys.executable, "-c", "import boto3"], capture_output=True, check=False).returncode:
        del cases["import boto3"]
        print("boto3 is not installed here: pip install boto3 to compare with it")
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(ROUNDS + 1):
        for name, code in cases.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
            if turn:
                seen[name].append((time.perf_counter() - start) * 1e3)
    bare = statistics.median(seen["bare Python"])
    rows = [(name, m := statistics.median(times), m - bare) for name, times in seen.items()]
    table(f"fresh processes, median of {ROUNDS}", ["", "ms", "over bare"], rows)
    loaded = f"import sys, onceward; print(*[m for m in {NEVER!r} if m in sys.modules])"
    print(
        "\n  of",
        ", ".join(NEVER),
        "it loads:",
        subprocess.check_output([sys.executable, "-c", loaded], text=True) or "none",
    )


if __name__ == "__main__":
    main()
