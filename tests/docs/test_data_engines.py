"""The page on data engines runs with those themselves: executors and workers are killed between an effect and its record."""

import pytest

from places import DOCS
from servers.environments import environment, run_page
from servers.needs import needs

PAGE = DOCS / "how-to" / "engines.md"
NEEDS = ["pyspark==4.3.0", "distributed==2026.8.0", "dask==2026.8.0", "ray==2.60.0", "psycopg[binary,pool]==3.3.9"]


def charge_each(folder, url, part, status=0):
    python = environment("data-engines", NEEDS)
    return run_page(python, "data_engines.py", PAGE, folder, url, part, status=status)


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["dask", "ray"])
def test_tasks_whose_workers_are_killed_take_effect_once(tmp_path, schema, part):
    assert "each once" in charge_each(tmp_path, schema, part)


@pytest.mark.nightly
def test_a_stream_of_spark_whose_executors_and_driver_are_killed_takes_effect_once(tmp_path, schema):
    needs("java", "apt-get install default-jre-headless")
    charge_each(tmp_path, schema, "spark dies", status=9)
    assert "each once" in charge_each(tmp_path, schema, "spark")
