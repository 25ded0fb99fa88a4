"""The pages about pipelines print the files that run."""

import re

from typer.testing import CliRunner

from onceward.cli.app import command_line
from places import EXAMPLES
from printed.pages import section
from tables import each

PAGE = section("docs/how-to/pipelines.md", "Scenarios")


@each("file", sorted((EXAMPLES / "pipelines").glob("*.yaml")))
def test_a_scenario_is_printed_as_it_runs_or_named(file):
    assert f'```yaml title="{file.name}"\n{file.read_text()}```\n' in PAGE or f"`{file.name}`" in PAGE


def test_the_pipeline_for_lambda_does_what_its_example_says(tmp_path, aws):
    page = section("docs/how-to/pipelines.md", "On AWS Lambda")
    (text,) = re.findall(r'```yaml title="orders.yaml"\n(.*?)```', page, re.DOTALL)
    file = tmp_path / "orders.yaml"
    file.write_text(text)
    for command in ("vet", "test"):
        done = CliRunner().invoke(command_line(), [command, str(file)])
        assert done.exit_code == 0, done.output
