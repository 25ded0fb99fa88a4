"""Fixtures that end what they made."""

import inspect

import pytest


def closing_fixture(make, *names, **options):
    """Return a fixture of what ``make`` returns, which is closed or stopped at its end.

    It is called with the fixtures of these names. A function without names is called with those that it takes.
    """
    names = names or (inspect.signature(make).parameters if inspect.isfunction(make) else ())

    def fixture(**given):
        made = make(*(given[name] for name in names))
        yield made
        made.close() if hasattr(made, "close") else made.stop()

    fixture.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return pytest.fixture(**options)(fixture)
