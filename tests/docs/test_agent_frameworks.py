"""The pages on agent frameworks and workflow engines run with those themselves: Python in environments of its own."""

import pytest

from environments import environment, run_page
from places import DOCS

FRAMEWORKS = DOCS / "how-to" / "agent-frameworks.md"
ENGINES = DOCS / "how-to" / "workflow-engines.md"
NEEDS = [
    "langchain==1.5.2",
    "langgraph==1.2.24",
    "langgraph-checkpoint-sqlite==3.1.2",
    "pydantic-ai-slim==2.68.0",
    "openai-agents==0.24.0",
    "google-adk==2.13.0",
    "strands-agents==1.62.0",
]


@pytest.mark.nightly
def test_tools_of_agent_frameworks_take_effect_once(tmp_path):
    printed = run_page(environment("frameworks", NEEDS), "agent_frameworks.py", FRAMEWORKS, tmp_path)
    assert printed.count(" ok ") == 8, printed


@pytest.mark.nightly
def test_activities_of_workflow_engines_take_effect_once(tmp_path):
    python = environment("engines", ["dbos==3.4.0", "temporalio==1.35.0", "prefect==3.9.1"])
    assert "all once" in run_page(python, "workflow_engines.py", ENGINES, tmp_path)
