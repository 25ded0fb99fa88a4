"""`onceward cost` as a person runs it."""

import json

import pytest

from command_line import Cli
from onceward import Once
from onceward.bill.prices import PACKAGED
from places import DOCS


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


def test_each_feature_and_other_libraries_stand_beside_the_plain_way(cli):
    told = cli.run("cost", "--store", "dynamodb://orders", "--messages", 1_000_000, "--duplicates", 0)
    lines = told.stdout.decode().splitlines()
    assert "prices of 2024-11-01" in lines[1]
    names = [line.split("  ")[0] for line in lines[4:]]
    assert names == [
        "onceward",
        "onceward, probe=read",
        "onceward, cache",
        "onceward, transact",
        "onceward, 3 steps",
        "onceward, batches of 10",
        "onceward, index=open",
        "Powertools 3.37",
        "idemkit 1.0",
    ]
    # Two write units a message, at 0.625 USD a million; and what is stored
    plain = json.loads(cli.run("cost", "--store", "dynamodb://orders", "--duplicates", 0, "--json").stdout)["ways"][0]
    assert plain["writes"] == pytest.approx(2e6 * 365 / 12)
    assert plain["price"] == pytest.approx(plain["writes"] * 0.625 / 1e6 + plain["gb"] * 0.25)


def test_what_a_ledger_refuses_is_told_and_not_priced(cli):
    told = cli.run("cost", "--store", "dynamodb://orders", "--result", 999_999_999).stdout.decode()
    assert "no row for 3 steps: results that do not fit into 16384 bytes get records of their own\n" in told
    assert "results of more than 262144 bytes are not recorded here, unless max_result= is larger\n" in told
    assert "onceward, 3 steps" not in told


@pytest.mark.parametrize("options", [("--messages", "inf"), ("--peak", "inf", "--mode", "provisioned")])
def test_numbers_that_are_no_load_are_usage_errors(cli, options):
    result = cli.run("cost", "--store", "dynamodb://orders", *options)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_prices_of_yours_replace_the_packaged_ones(cli):
    listed = json.loads(PACKAGED.read_text())
    listed["as_of"], listed["stores"]["dynamodb"] = "2030-01-01", {"million_writes": 10.0}
    cli.write("prices.json", listed)
    told = cli.run("cost", "--store", "dynamodb://orders", "--duplicates", 0, "--json", "--prices", "prices.json")
    answer = json.loads(told.stdout)
    assert answer["prices"] == "2030-01-01"
    assert answer["ways"][0]["price"] == pytest.approx(2 * 10 * 365 / 12)


def test_a_file_that_is_no_list_of_prices_is_a_usage_error(cli):
    cli.write("prices.json", {"as_of": "2030-01-01"})
    told = cli.run("cost", "--prices", "prices.json")
    assert told.returncode == 2
    assert "is not a list of prices" in told.stderr


def test_provisioned_capacity_is_cheaper_for_a_steady_load(cli):
    prices = [
        json.loads(cli.run("cost", "--store", "dynamodb://orders", "--mode", mode, "--peak", 1, "--json").stdout)
        for mode in ("on-demand", "provisioned")
    ]
    assert prices[1]["ways"][0]["price"] < prices[0]["ways"][0]["price"]


def test_a_real_ledger_is_measured(cli):
    once = Once(f"sqlite:///{cli.folder}/ledger.db", name="shop")
    once.run("order-1", lambda: "x" * 498)
    once.close()
    told = cli.run("cost", "--store", "sqlite:///ledger.db", "--measure", "0.1s", "--json")
    answer = json.loads(told.stdout)
    assert answer["workload"]["result"] == 500
    assert answer["workload"]["messages"] == 0
    assert answer["unknown"]


def test_a_store_that_counts_nothing_is_refused(cli):
    told = cli.run("cost", "--store", "memory:")
    assert told.returncode == 2
    assert "cannot tell what a workload asks of it. Use a store that can: dynamodb" in told.stderr


def test_the_page_shows_what_the_command_prints(cli):
    page = (DOCS / "explanation" / "costs.md").read_text()
    shown = page.split("```console\n$ onceward cost --store dynamodb://orders\n")[1].split("```")[0]
    assert cli.run("cost", "--store", "dynamodb://orders").stdout.decode() == shown
