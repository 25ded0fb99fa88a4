"""``onceward work`` on NATS, Redis Streams and RabbitMQ: runs to the end of a queue, exit statuses, and a killed worker."""

import json
import signal

import pytest
from nats.js.api import StorageType

from commands.command_line import Cli
from onceward import Once
from queues.shops import NatsShop, RabbitShop, RedisShop
from servers.redis import Redis
from waiting import PATIENCE, until

CODE = """
import time
from pathlib import Path

def charge(order: dict) -> int:
    if order["id"] == 13 and not Path("mended").exists():
        Path("begun").touch()
        time.sleep(600)
    with open("charged", "a") as file:
        file.write(f"{order['id']}\\n")
    return order["id"]
"""
ARGUMENTS = ("--call", "shop:charge", "--key", "order.id", "--name", "shop", "--store", "sqlite:///l.db")


@pytest.fixture(scope="module")
def redis_kept():
    """A server that keeps its streams."""
    made = Redis(appendonly="yes")
    yield made
    made.stop()


@pytest.fixture
def nats_shop(nats):
    return NatsShop(nats)


@pytest.fixture
def redis_shop(redis_kept):
    return RedisShop(redis_kept)


@pytest.fixture
def rabbit_shop(rabbitmq):
    return RabbitShop(rabbitmq)


@pytest.fixture
def nats_losing(nats):
    return NatsShop(nats, storage=StorageType.MEMORY)


@pytest.fixture
def redis_losing(redis):
    return RedisShop(redis)


@pytest.fixture
def rabbit_losing(rabbitmq):
    return RabbitShop(rabbitmq, x_max_length=5)


@pytest.fixture
def cli(tmp_path):
    (tmp_path / "shop.py").write_text(CODE)
    return Cli(tmp_path)


@pytest.mark.parametrize("shop", ["nats_shop", "redis_shop", "rabbit_shop"])
def test_a_run_to_the_end_of_a_queue_tells_of_each_message(cli, shop, request):
    shop = request.getfixturevalue(shop)
    shop.publish({"id": 1}, {"id": 2}, {"id": 1}, b"torn")
    told = cli.run(
        "work",
        f"{shop.broker}:{shop.orders}",
        *ARGUMENTS,
        "--set",
        f"url={shop.url}",
        "--until-empty",
        "--json",
        timeout=PATIENCE,
    )
    outcomes = [line["outcome"] for line in map(json.loads, told.stdout.splitlines()) if "outcome" in line]
    assert sorted(outcomes) == ["done", "done", "malformed", "replayed"], told
    assert told.returncode == 3
    assert sorted(cli.log("charged")) == ["1", "2"]
    assert shop.letter().headers["onceward-status"] == "malformed"


@pytest.mark.parametrize("shop", ["nats_losing", "redis_losing", "rabbit_losing"])
def test_a_queue_that_loses_messages_ends_the_command(cli, shop, request):
    shop = request.getfixturevalue(shop)
    told = cli.run("work", f"{shop.broker}:{shop.orders}", *ARGUMENTS, "--set", f"url={shop.url}", timeout=PATIENCE)
    assert told.returncode == 4
    assert "loses" in told.stderr


@pytest.mark.sampled("redis_shop")
@pytest.mark.parametrize(("shop", "place"), [("nats_shop", "NATS_URL"), ("redis_shop", "REDIS_URL")])
def test_what_a_killed_worker_held_takes_effect_once(cli, shop, place, request):
    shop = request.getfixturevalue(shop)
    cli.env[place] = shop.url
    options = ("work", f"{shop.broker}:{shop.orders}", *ARGUMENTS, "--lease", "3", *shop.recover_soon())
    once = Once(f"sqlite:///{cli.folder}/l.db")
    shop.publish({"id": 1}, {"id": 13})
    victim = cli.start(*options)
    until(lambda: (cli.folder / "begun").exists() and once.ledger.stats()["COMPLETED"] == 1)
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=PATIENCE)
    (cli.folder / "mended").touch()
    shop.publish({"id": 1})
    second = cli.start(*options)
    try:
        until(lambda: once.ledger.stats()["COMPLETED"] == 2)
        until(lambda: shop.pending() == 0)
    finally:
        second.send_signal(signal.SIGTERM)
        _, err = second.communicate(timeout=PATIENCE)
        once.close()
    assert second.returncode == 0, err
    assert sorted(cli.log("charged")) == ["1", "13"]
