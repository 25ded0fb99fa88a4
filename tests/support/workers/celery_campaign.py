"""The Celery application of a campaign (faults/campaign.py): `celery -A celery_campaign worker`. ``ONCEWARD_BROKER`` is its broker."""

import os

from celery import Celery

from faults import campaign_effects
from onceward import Claim
from onceward.celery import exactly

app = Celery("campaign", broker=os.environ["ONCEWARD_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
)
if app.conf.broker_url.startswith("redis:"):
    # What a killed worker held comes again so soon, also if it died as it brought others back.
    app.conf.broker_transport_options = {"visibility_timeout": 6, "unacked_mutex_expire": 6}
else:  # as `onceward doctor` asks: a restart of RabbitMQ loses retries that it has not confirmed
    app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(name="campaign.handle", autoretry_for=(Exception,), max_retries=None, default_retry_delay=1)
@exactly(campaign_effects.opened(), key="order.id", name="campaign")
def handle(order: dict, claim: Claim) -> int:
    return campaign_effects.handle(order, claim)
