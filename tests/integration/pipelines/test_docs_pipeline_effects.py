"""The pipelines that docs/reference/pipelines.md prints can run."""

import re

import pytest

from onceward.pipelines.pipeline import examine
from printed.pages import section

PAGE = section("docs/reference/pipelines.md", "What effects and sinks promise")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_vet_finds_no_mistake(number, tmp_path, aws, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("orders.ndjson").touch()
    tmp_path.joinpath("pipeline.yaml").write_text(BLOCKS[number])
    assert examine(tmp_path / "pipeline.yaml")[1] == []
