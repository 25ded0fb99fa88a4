"""Pages of the reference, and parts of pages, that are made from the code each time the site is built."""

from collections.abc import Callable

from generated import (
    call,
    commands,
    compared,
    errors,
    observing,
    options,
    pipeline_file,
    python_api,
    rooms,
    states,
    tables,
)

PAGES: dict[str, Callable[[], str]] = {"reference/errors.md": errors.page, "reference/python.md": python_api.page}
# A page has the line `<!-- generated: options -->` where the part belongs.
PARTS: dict[str, Callable[[], str]] = {
    "call": call.part,
    "measures": observing.measures,
    "kinds": observing.kinds,
    "options": options.part,
    "commands": commands.part,
    "compared": compared.part,
    "pipeline_file": pipeline_file.part,
    "rooms": rooms.part,
    "states": states.part,
    "tables": tables.part,
}
