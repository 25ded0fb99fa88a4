"""A pipeline that gets one order twice."""

import pathlib
import subprocess
import sys

pathlib.Path("orders.ndjson").write_text('{"id": 1}\n{"id": 1}\n')
pathlib.Path("orders.yaml").write_text("""
name: orders
ledger: sqlite:///pipelines.db
source:
  ndjson: {files: [orders.ndjson]}
guard: {key: message.id}
sinks:
  - file: {path: out.ndjson}
""")
for command in ("vet", "run"):
    subprocess.run([sys.executable, "-m", "onceward", command, "orders.yaml"], check=True)
assert pathlib.Path("out.ndjson").read_text().count("\n") == 1
