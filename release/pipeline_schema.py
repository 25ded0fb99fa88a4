"""Write docs/reference/pipeline.schema.json: what editors complete and check a pipeline's file with. `make api` runs this; a test compares."""

from pathlib import Path

from onceward.pipelines.reading import text

LISTED = Path(__file__).parent.parent / "docs" / "reference" / "pipeline.schema.json"

if __name__ == "__main__":
    LISTED.write_text(text())
    print(LISTED.name)
