"""A worker of test_campaign_nats.py: ``python nats_worker.py URL SUBJECT``."""

import sys

from faults.campaign_effects import handle, opened
from onceward.nats import NatsWorker

URL, SUBJECT = sys.argv[1:]
NatsWorker(opened(), SUBJECT, handle, key="order.id", name="campaign", url=URL, backoff=(0.5, 2.0)).run()
