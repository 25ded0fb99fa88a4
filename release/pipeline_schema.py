"""Write the JSON Schema of a pipeline's file, with which editors complete and check it. `make api` runs this; a test compares."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = ("src/onceward/pipelines/schema.json", "docs/reference/pipeline.schema.json")

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "docs"))
    from generated.pipeline_schema import text

    for name in PLACES:
        (ROOT / name).write_text(text(), encoding="utf-8")
        print(name)
