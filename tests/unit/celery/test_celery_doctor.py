"""What doctor says of Celery applications: each unsafe setting once, with its fix, and nothing of safe ones."""

import json
import subprocess
import sys

import pytest
from celery import Celery
from kombu import Queue

from onceward import Once
from onceward.celery import OnceTask, exactly
from onceward.celery.doctor import celery_findings
from onceward.celery.ends import has_dead_letters
from tables import each

SAFE = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_acks_on_failure_or_timeout": False,
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": {"confirm_publish": True},
}


def application(broker="amqp://", *, options=None, task=None, **settings):
    """An application with one guarded task and safe settings, but for what is given."""
    app = Celery("shop", broker=broker, backend="rpc://", set_as_current=False)
    app.conf.update(SAFE | settings)

    @app.task(shared=False, name="shop.charge", **(task or {}))
    @exactly(Once("memory:"), key="order.id", **({"max_attempts": 5} | (options or {})))
    def charge(order): ...

    return app


def unsafe(app):
    """The checks that are not ok, and their levels."""
    return {finding.check: finding.level for finding in celery_findings(app) if finding.level != "ok"}


def test_safe_settings_are_ok():
    assert unsafe(application()) == unsafe(application("sqs://")) == {}
    assert unsafe(application("redis://")) == {"broker": "warning"}
    assert unsafe(Celery("shop", set_as_current=False)) == {"tasks": "error"}
    app = Celery("shop", broker="sqs://", set_as_current=False)

    @app.task(shared=False, base=OnceTask, once=Once("memory:"), options={"max_attempts": 5})
    def charge(order): ...

    app.conf.worker_prefetch_multiplier = 1
    assert unsafe(app) == {}  # the class is safe by itself


@each(
    ("given", "check", "level"),
    [
        ({"task_acks_late": False}, "task_acks_late", "error"),
        ({"task_reject_on_worker_lost": False}, "task_reject_on_worker_lost", "error"),
        ({"broker_transport_options": {}}, "confirm_publish", "error"),
        ({"options": {"max_attempts": None}}, "max_attempts", "warning"),
        ({"options": {"retention": 3600.0}}, "result_expires", "warning"),
        (
            {"task": {"time_limit": 60, "acks_on_failure_or_timeout": True}},
            "task_acks_on_failure_or_timeout",
            "warning",
        ),
        ({"broker": "redis://", "worker_prefetch_multiplier": 4}, "worker_prefetch_multiplier", "warning"),
        ({"broker": "redis://", "options": {"lease": 3600.0}}, "visibility_timeout", "warning"),
        ({"broker": "redis://", "task": {"default_retry_delay": 7200}}, "visibility_timeout", "warning"),
        ({"broker": "sqs://", "options": {"lease": 2000.0}}, "visibility_timeout", "warning"),
        (
            {"broker": "redis://", "options": {"retention": 3000}, "task_ignore_result": True},
            "visibility_timeout",
            "error",
        ),
        ({"task_create_missing_queues": False, "task_queues": [Queue("celery")]}, "dead letters", "error"),
    ],
)
def test_each_unsafe_setting_is_told_alone_with_its_fix(given, check, level):
    app = application(**given)
    assert {**unsafe(app), "broker": None} == {check: level, "broker": None}
    (finding,) = [finding for finding in celery_findings(app) if finding.level != "ok" and finding.check == check]
    assert finding.says
    assert finding.why
    assert finding.fix


def test_only_rabbitmq_has_dead_letter_exchanges():
    """On another broker a task that is rejected is gone."""
    queue = Queue("celery", queue_arguments={"x-dead-letter-exchange": "dead"})
    assert not has_dead_letters(Celery(broker="redis://", task_queues=[queue], set_as_current=False), "celery")
    assert has_dead_letters(Celery(broker="amqps://", task_queues=[queue], set_as_current=False), "celery")


@pytest.mark.slow
def test_the_command_loads_the_application(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\nfrom onceward import Once\nfrom onceward.celery import exactly\n"
        "app = Celery('shop', broker='redis://')\n"
        "@app.task\n@exactly(Once('memory:'), key='order.id')\ndef charge(order): ...\n"
    )
    command = [sys.executable, "-m", "onceward", "doctor", "--json", "--celery"]
    done = subprocess.run([*command, "shop:app"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done
    levels = {finding["check"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}
    assert levels["task_acks_late"] == "error"
    missing = subprocess.run([*command, "nothing:app"], cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 2
    assert "--celery nothing:app: there is no Celery application" in missing.stderr
