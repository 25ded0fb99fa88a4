"""The pages on agent frameworks and workflow engines run with those themselves: Python in environments of its own."""

import subprocess

import pytest

from places import DOCS
from servers.environments import environment, from_maven, run_page
from servers.needs import free_port, listens, needs
from servers.orphans import watched

FRAMEWORKS = DOCS / "how-to" / "agents.md"
ENGINES = DOCS / "how-to" / "engines.md"
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
    assert printed.count(" ok ") == 10, printed


@pytest.fixture
def temporal():
    """The port of Temporal's test server."""
    java = needs("java", "apt-get install default-jre-headless")
    jars = from_maven("temporal-1.38.0", "io.temporal:temporal-test-server:1.38.0", "org.slf4j:slf4j-nop:2.0.17")
    port = free_port()
    command = [java, "-cp", f"{jars}/*", "io.temporal.testserver.TestServer", str(port)]
    server = watched(subprocess.Popen(command))
    assert listens(port, server)
    yield port
    server.kill()
    server.wait()


@pytest.mark.nightly
def test_activities_of_workflow_engines_take_effect_once(tmp_path, temporal):
    python = environment("engines", ["dbos==3.4.0", "temporalio==1.35.0", "prefect==3.9.1"])
    assert "all once" in run_page(python, "workflow_engines.py", ENGINES, tmp_path, str(temporal))


@pytest.mark.nightly
def test_a_task_of_airflow_whose_process_is_killed_takes_effect_once(tmp_path):
    python = environment("airflow", ["apache-airflow==3.3.2", "apache-airflow-task-sdk==1.3.2"])
    run_page(python, "airflow_tasks.py", ENGINES, tmp_path, status=-9)
    assert "each once" in run_page(python, "airflow_tasks.py", ENGINES, tmp_path)
