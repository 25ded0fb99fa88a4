"""A worker of test_servers_in_trouble.py: ``python broker_worker.py BROKER URL ORDERS``. It appends each order's id to a file."""

import os
import sys
import time

from onceward import Once
from queues.shops import NatsShop, RabbitShop, RedisShop
from servers.wrong_clocks import mend_sleep

BROKER, URL, ORDERS = sys.argv[1:]
mend_sleep()


def charge(order):
    time.sleep(0.05)
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{order['id']}\n")


shop = {"nats": NatsShop, "redis": RedisShop, "rabbitmq": RabbitShop}[BROKER]
made = shop.__new__(shop)
made.url, made.orders = URL, ORDERS
made.worker(Once(os.environ["LEDGER"], lease=5, name="shop"), charge, concurrency=2).run()
