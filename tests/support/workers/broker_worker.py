"""A worker of test_servers_in_trouble.py: ``python broker_worker.py BROKER URL ORDERS``. It appends each order's id to a file."""

import os
import select
import sys

from onceward import Once
from queues.shops import NatsShop, RabbitShop, RedisShop

BROKER, URL, ORDERS = sys.argv[1:]


def charge(order):
    select.select((), (), (), 0.05)  # time.sleep() fails at times under a wrong clock
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{order['id']}\n")


shop = {"nats": NatsShop, "redis": RedisShop, "rabbitmq": RabbitShop}[BROKER]
made = shop.__new__(shop)
made.url, made.orders = URL, ORDERS
made.worker(Once(os.environ["LEDGER"], lease=5, name="shop"), charge, concurrency=2).run()
