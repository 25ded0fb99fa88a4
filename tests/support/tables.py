"""A table of cases that one test goes through."""

import asyncio
import inspect
from functools import wraps


def each(names, rows):
    """Call the test with each row within one test, so that a row must not meet what another one has left; a failure says its row."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [row if len(names) > 1 else (row,) for row in rows]
    assert rows, "a table without rows tests nothing"

    def table(test):
        @wraps(test)
        def run(**given):
            for row in rows:
                values = dict(zip(names, row, strict=True))
                try:
                    awaited = test(**given, **values)
                    if inspect.iscoroutine(awaited):
                        asyncio.run(awaited)
                except BaseException as error:
                    error.add_note(f"row: {values!r}")
                    raise

        signature = inspect.signature(test)
        others = [it for name, it in signature.parameters.items() if name not in names]
        assert len(others) + len(names) == len(signature.parameters), f"{test.__name__} does not take {names}"
        run.__signature__ = signature.replace(parameters=others)
        return run

    return table
