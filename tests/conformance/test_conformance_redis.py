"""The Redis store passes the conformance suite."""

import time

import pytest

from onceward.stores import open_store
from onceward.testing.conformance import CHECKS, MODES, Bench
from stores.unknown_fields import check_unknown_fields_stay
from tables import each

pytestmark = pytest.mark.sampled(mode=1)


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_redis_store_conforms(check, mode, moved_redis):
    url = moved_redis.fresh()
    make = lambda *_: open_store(url)

    check.run(Bench(make, make, mode=mode, advance=moved_redis.move))


def test_a_write_keeps_the_fields_of_a_newer_version(redis, redis_url):
    def field(store, key):
        record = store.names.shard_of(key.encode()).keys_of(key.encode())[0]
        redis.ask("HSET", record, "later", "x")
        return lambda: redis.ask("HGET", record, "later") == "x"

    check_unknown_fields_stay(Bench(lambda _: open_store(redis_url)), field)


@pytest.mark.parametrize("check", ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"])
def test_the_redis_store_on_its_own_clock_conforms(check, redis_url):
    (one,) = [c for c in CHECKS if c.name == check]
    one.run(Bench(lambda _: open_store(redis_url), advance=time.sleep))
