"""A worker of test_campaign_redis_streams.py: ``python redis_streams_worker.py URL STREAM``."""

import sys

from faults.campaign_effects import handle, opened
from onceward.redis_streams import RedisStreamsWorker

URL, STREAM = sys.argv[1:]
once = opened()
RedisStreamsWorker(once, STREAM, handle, key="order.id", name="campaign", url=URL, backoff=(0.5, 2.0), idle=5.0).run()
