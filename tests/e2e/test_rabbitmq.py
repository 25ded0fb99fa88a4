"""``onceward redrive amqp:QUEUE`` as a command. test_worker_commands.py has ``onceward work rabbitmq:QUEUE``."""

import pytest

from commands.command_line import Cli
from queues.shops import RabbitShop
from waiting import PATIENCE, until

CHARGES = """
def charge(order: dict) -> int:
    with open("charged", "a") as file:
        file.write(f"{order['id']}\\n")
    return order["id"]
"""
FAILS = """
def charge(order: dict):
    raise ValueError('no such account')
"""


@pytest.mark.nightly
def test_redrive_sends_dead_letters_again_and_unparks_their_keys(tmp_path, rabbitmq):
    cli, shop = Cli(tmp_path), RabbitShop(rabbitmq)
    cli.env["AMQP_URL"] = rabbitmq.url
    store = ("--store", "sqlite:///l.db")

    def ran(*options):
        called = ("--call", "shop:charge", "--key", "order.id", "--name", "shop", "--until-empty")
        return cli.run("work", f"rabbitmq:{shop.orders}", *called, *store, *options, timeout=PATIENCE)

    def redriven(*options):
        return cli.run("redrive", f"amqp:{shop.orders}", *store, *options, timeout=PATIENCE)

    def dead():
        return rabbitmq.ready(f"{shop.orders}.onceward-dead")

    (tmp_path / "shop.py").write_text(FAILS)
    shop.publish({"id": 7}, who="us")
    until(lambda: ran("--max-attempts", "1") and dead())  # a run ends while the message waits for its second try
    (tmp_path / "shop.py").write_text(CHARGES)
    assert b"would be moved" in redriven("--dry-run").stdout
    assert dead() == 1
    done = redriven()
    assert (done.returncode, b"shop:7" in done.stdout) == (0, True), done
    (message,) = rabbitmq.take(shop.orders)
    assert message.headers == {"who": "us", "x-delivery-count": 0}
    shop.publish({"id": 7})
    assert ran().returncode == 0
    assert cli.log("charged") == ["7"]
