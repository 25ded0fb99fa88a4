"""A receiver as a view of Flask."""

from collections.abc import Callable

import flask

from onceward.web.webhooks.receiver import WebhookReceiver


def view(receiver: WebhookReceiver) -> Callable[[], flask.Response]:
    """Make a view.

    In Flask: ``app.add_url_rule("/stripe", "stripe", view(hook), methods=["POST"])``.
    """

    def receive() -> flask.Response:
        answer = receiver.answer(dict(flask.request.headers), flask.request.get_data())
        return flask.Response(answer.body, answer.status, dict(answer.headers))

    return receive
