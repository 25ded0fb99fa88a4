"""Pages of the reference that are made from the code, each time the site is built."""

from collections.abc import Callable

from generated import answers, commands, errors, options, pipeline_file, python_api, tables

PAGES: dict[str, Callable[[], str]] = {
    "reference/options.md": options.page,
    "reference/errors.md": errors.page,
    "reference/commands.md": commands.page,
    "reference/pipeline-file.md": pipeline_file.page,
    "reference/answers.md": answers.page,
    "reference/tables.md": tables.page,
    **python_api.PAGES,
}
