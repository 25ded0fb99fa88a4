"""The pages on agent frameworks, workflow engines and data engines run with those themselves: Python in environments of its own."""

import subprocess

import pytest

from places import DOCS
from servers.environments import environment, from_maven, run_page
from servers.needs import free_port, listens, needs
from servers.orphans import watched

pytestmark = pytest.mark.nightly

FRAMEWORKS = DOCS / "how-to" / "agents.md"
ENGINES = DOCS / "how-to" / "engines.md"
AGENTS = ["langchain==1.5.2", "langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2", "pydantic-ai-slim==2.68.0"]
AGENTS += ["openai-agents==0.24.0", "google-adk==2.13.0", "strands-agents==1.62.0"]

DATA = ["pyspark==4.3.0", "distributed==2026.8.0", "dask==2026.8.0", "ray==2.60.0", "psycopg[binary,pool]==3.3.9"]


def test_tools_of_agent_frameworks_take_effect_once(tmp_path):
    printed = run_page(environment("frameworks", AGENTS), "agent_frameworks.py", FRAMEWORKS, tmp_path)
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


def test_activities_of_workflow_engines_take_effect_once(tmp_path, temporal):
    python = environment("engines", ["dbos==3.4.0", "temporalio==1.35.0", "prefect==3.9.1"])
    assert "all once" in run_page(python, "workflow_engines.py", ENGINES, tmp_path, str(temporal))


def test_a_task_of_airflow_whose_process_is_killed_takes_effect_once(tmp_path):
    python = environment("airflow", ["apache-airflow==3.3.2", "apache-airflow-task-sdk==1.3.2"])
    run_page(python, "airflow_tasks.py", ENGINES, tmp_path, status=-9)
    assert "each once" in run_page(python, "airflow_tasks.py", ENGINES, tmp_path)


def charge_each(folder, url, part, status=0):
    python = environment("data-engines", DATA)
    return run_page(python, "data_engines.py", ENGINES, folder, url, part, status=status)


@pytest.mark.parametrize("part", ["dask", "ray"])
def test_tasks_whose_workers_are_killed_take_effect_once(tmp_path, schema, part):
    assert "each once" in charge_each(tmp_path, schema, part)


def test_a_stream_of_spark_whose_executors_and_driver_are_killed_takes_effect_once(tmp_path, schema):
    needs("java", "apt-get install default-jre-headless")
    charge_each(tmp_path, schema, "spark dies", status=9)
    assert "each once" in charge_each(tmp_path, schema, "spark")
