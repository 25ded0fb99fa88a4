"""``onceward work`` on NATS, Redis Streams, RabbitMQ and Kafka: to the end of a queue, exit statuses, signals, and a killed worker."""

import json
from types import SimpleNamespace

import pytest

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
def cli(tmp_path):
    (tmp_path / "shop.py").write_text(CODE)
    return Cli(tmp_path)


def kafka_shop(need):
    kafka, topic = need("kafka"), need("topic")

    def publish(*orders):
        kafka.send(topic, *[order if isinstance(order, bytes) else json.dumps(order).encode() for order in orders])

    return SimpleNamespace(broker="kafka", orders=topic, publish=publish, url=kafka.servers)


SHOPS = {
    "nats": lambda need: NatsShop(need("nats")),
    "redis": lambda need: RedisShop(need("redis_kept")),
    "rabbitmq": lambda need: RabbitShop(need("rabbitmq")),
    "kafka": kafka_shop,
}


def work(shop, *options):
    place = "servers" if shop.broker == "kafka" else "url"
    return ("work", f"{shop.broker}:{shop.orders}", *ARGUMENTS, "--set", f"{place}={shop.url}", *options)


@pytest.mark.parametrize("kind", SHOPS)
def test_a_run_to_the_end_of_a_queue_tells_of_each_message(cli, kind, request):
    shop = SHOPS[kind](request.getfixturevalue)
    shop.publish({"id": 1}, {"id": 2}, {"id": 1}, b"torn")
    told = cli.run(*work(shop, "--until-empty", "--json"), timeout=PATIENCE)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    outcomes = sorted(line["outcome"] for line in lines if "outcome" in line)
    assert outcomes == ["done", "done", "malformed", "replayed"], told
    assert [line["summary"]["done"] for line in lines if "summary" in line] == [2]
    assert told.returncode == 3
    assert sorted(cli.log("charged")) == ["1", "2"]
    if kind != "kafka":
        assert shop.letter().headers["onceward-status"] == "malformed"


def test_a_queue_that_loses_messages_ends_the_command(cli, redis):
    told = cli.run(*work(RedisShop(redis)), timeout=PATIENCE)
    assert (told.returncode, "loses" in told.stderr) == (4, True)


def test_a_signal_ends_it_and_commits_what_is_done(cli, kafka, topic, request):
    shop = kafka_shop(request.getfixturevalue)
    shop.publish({"id": 1})
    running = cli.start(*work(shop, "--set", "group=till"))
    until(lambda: cli.log("charged") == ["1"])
    running.terminate()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert kafka.committed("till", topic) == {0: 1}


@pytest.mark.sampled("redis")
@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_what_a_killed_worker_held_takes_effect_once(cli, kind, request):
    shop = SHOPS[kind](request.getfixturevalue)
    options = work(shop, "--lease", "3", *shop.recover_soon())
    once = Once(f"sqlite:///{cli.folder}/l.db")
    shop.publish({"id": 1}, {"id": 13})
    victim = cli.start(*options)
    until(lambda: (cli.folder / "begun").exists() and once.ledger.stats()["COMPLETED"] == 1)
    victim.kill()
    victim.communicate(timeout=PATIENCE)
    (cli.folder / "mended").touch()
    shop.publish({"id": 1})
    second = cli.start(*options)
    try:
        until(lambda: once.ledger.stats()["COMPLETED"] == 2 and shop.pending() == 0)
    finally:
        second.terminate()
        _, err = second.communicate(timeout=PATIENCE)
        once.close()
    assert second.returncode == 0, err
    assert sorted(cli.log("charged")) == ["1", "13"]
