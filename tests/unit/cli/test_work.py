"""``onceward work`` names each setting that its brokers have."""

import msgspec
import pytest

from onceward.cli import work
from onceward.pipelines.sources import brokers


@pytest.mark.parametrize("kind", work._BROKERS.values())
def test_the_help_names_each_setting(kind):
    _, *settings = (field.name for field in msgspec.structs.fields(getattr(brokers, kind)))
    broker = next(name for name, one in work._BROKERS.items() if one == kind)
    told = work.HELP.split("--set has the settings")[1].replace("\n", " ").split(f" {broker}: ")[1].split(". ")[0]
    assert [name.partition(".")[0].split(" ")[0] for name in told.split(", ")] == settings
