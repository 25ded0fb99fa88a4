"""Shops that get their orders from a broker, and workers for them that are stopped at the end."""

from contextlib import ExitStack

import pytest

from fixtures import closing_fixture
from onceward import Once
from servers.redis import Redis
from stores.ledgers import LEDGERS
from waiting import working

once = closing_fixture(lambda: Once("memory:", name="shop", lease=20))


@pytest.fixture(params=[*LEDGERS, "redis"])
def every_url(request, tmp_path):
    """The URL of an empty ledger of each store in turn, on Redis with a server of its own that loses nothing."""
    if request.param != "redis":
        yield LEDGERS[request.param].fresh(request, tmp_path).url
        return
    server = Redis(appendonly="yes", appendfsync="always")
    yield server.url
    server.stop()


# A server that keeps its streams.
redis_kept = closing_fixture(lambda: Redis(appendonly="yes"), scope="session")


@pytest.fixture
def nats_shop(nats):
    from queues.shops import NatsShop  # it imports the clients of all brokers

    return NatsShop(nats)


@pytest.fixture
def redis_shop(redis_kept):
    from queues.shops import RedisShop

    return RedisShop(redis_kept)


@pytest.fixture
def rabbit_shop(rabbitmq):
    from queues.shops import RabbitShop

    return RabbitShop(rabbitmq)


@pytest.fixture
def work(once, shop):
    """Give a function that starts a worker of the test's shop in a thread."""
    with ExitStack() as running:
        yield lambda handler, **options: running.enter_context(working(shop.worker(once, handler, **options)))
