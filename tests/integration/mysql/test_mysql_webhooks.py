"""A webhook's record commits with its effect in MariaDB, under Django's ATOMIC_REQUESTS."""

import hashlib
import hmac

from django.db import connections, transaction
from django.test import Client, override_settings
from django.urls import path

from onceward.web.webhooks import GitHub, WebhookReceiver
from onceward.web.webhooks.django import view
from stores.mysql_hands import django_on_mysql

SIGNED = "sha256=" + hmac.new(b"secret", b"{}", hashlib.sha256).hexdigest()
HEADERS = {"X-GitHub-Delivery": "1", "X-GitHub-Event": "ping", "X-Hub-Signature-256": SIGNED}


def test_the_record_of_a_webhook_commits_with_its_effect(once, database, effects):
    django = django_on_mysql("webhooks", database)
    django.settings_dict["ATOMIC_REQUESTS"] = True
    seen = []

    def handle(event):
        with django.cursor() as cursor:
            cursor.execute("INSERT INTO effects VALUES ('paid')")
        if len(seen) == 0:
            seen.append("failed")
            raise ZeroDivisionError
        transaction.on_commit(
            lambda: seen.append((effects(), [record.status for record, _ in once.ledger.records()])),
            using="webhooks",
        )

    hook = WebhookReceiver(once, GitHub("secret"), handle, name="hooks")
    try:
        with override_settings(ROOT_URLCONF=(path("hook", view(hook)),)):
            client = Client(raise_request_exception=False)
            send = lambda: client.post("/hook", b"{}", "application/json", headers=HEADERS).status_code
            assert [send(), send(), send()] == [500, 200, 200]
    finally:
        django.close()
        del connections.settings["webhooks"]
    assert (seen, effects()) == (["failed", (["paid"], ["COMPLETED"])], ["paid"])
