"""Makes the files of ``tests/integration/aws/printed`` again. It needs 428 MB that CI does without.

Run: ``python -m venv /tmp/cdk && /tmp/cdk/bin/pip install aws-cdk-lib``, then ``python tests/support/synthesize.py /tmp/cdk/bin/python``.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from places import ROOT
from templates import CASES, text_of

FOLDER = ROOT / "tests" / "integration" / "aws" / "printed"
PARTS = ("Parameters", "Resources", "Outputs")
BY_CDK = {"BootstrapVersion"}  # a parameter that it adds to every stack


def synthesized(python: str, program: str) -> dict:
    """Return the parts of the template that the program makes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(program)
        done = subprocess.run(
            [python, "app.py"], cwd=folder, env=os.environ | {"CDK_OUTDIR": "out"}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr)
        template = json.loads((Path(folder) / "out" / "onceward.template.json").read_text())
    template["Parameters"] = {name: one for name, one in template["Parameters"].items() if name not in BY_CDK}
    return {part: template[part] for part in PARTS if template.get(part)}


def main(python: str) -> None:
    for name in CASES:
        program = text_of(name, "cdk")
        kept = {"program": program.splitlines(), "synthesized": synthesized(python, program)}
        (FOLDER / f"cdk-{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1])
