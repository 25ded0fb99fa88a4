"""A worker of test_campaign_rabbitmq.py: ``python rabbit_worker.py URL QUEUE``."""

import sys

from faults.campaign_effects import handle, opened
from onceward.rabbitmq import RabbitWorker

URL, QUEUE = sys.argv[1:]
RabbitWorker(opened(), QUEUE, handle, key="order.id", name="campaign", url=URL, backoff=(0.5, 2.0), wait=1.0).run()
