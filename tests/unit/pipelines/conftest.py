import sys

import pytest

from commands.pipeline_files import PipelineFolder


@pytest.fixture
def pipelines(tmp_path, monkeypatch):
    """A folder for a pipeline."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = PipelineFolder(tmp_path)
    yield found
    sys.modules.pop(found.module, None)
