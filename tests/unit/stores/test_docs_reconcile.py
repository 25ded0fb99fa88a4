"""The code of docs/how-to/runbook.md and docs/reference/records.md prints what the pages say."""

import re
import subprocess
import sys

import pytest

from printed.pages import section
from tables import each


@pytest.mark.slow
@each(
    ("page", "title"),
    [
        ("docs/how-to/runbook.md", "Compare the ledger with the downstream"),
        ("docs/reference/records.md", "The last attempts"),
    ],
)
def test_the_page_prints_what_it_says(page, title, tmp_path):
    text = section(page, title)
    found = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", text, re.DOTALL)
    assert found
    for number, (code, printed) in enumerate(found):
        script = tmp_path / f"block{number}.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.returncode) == (printed, 0), done.stderr
