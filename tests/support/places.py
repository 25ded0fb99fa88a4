"""Where things are, for tests that read documents, run examples or start processes."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES, DOCS, EXAMPLES = ROOT / "src", ROOT / "docs", ROOT / "examples"
SUPPORT = ROOT / "tests" / "support"
WORKERS = SUPPORT / "workers"  # scripts that tests run as processes of their own
