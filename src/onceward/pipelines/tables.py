"""The kinds of steps, sinks and sources by their names, loaded on first use."""

from functools import cache
from importlib import import_module
from typing import cast

from onceward.pipelines.settings import Settings
from onceward.pipelines.sinks import SINKS
from onceward.pipelines.sources import SOURCES
from onceward.pipelines.steps import STEPS

TABLES = {"steps": STEPS, "sinks": SINKS, "sources": SOURCES}


@cache
def kind(table: str, name: str) -> type[Settings]:
    """Return the class of the settings of a kind; raises KeyError if there is none."""
    module, _, found = TABLES[table][name].partition(":")
    return cast("type[Settings]", getattr(import_module(module), found))
