"""A receiver as a view of Flask."""

from collections.abc import Callable

import flask

from onceward.web.webhooks.receiver import WebhookReceiver


def view(receiver: WebhookReceiver) -> Callable[[], flask.Response]:
    """Make a view.

    In Flask: ``app.add_url_rule("/stripe", "stripe", view(hook), methods=["GET", "POST"])``; GET is for handshakes.

    Raises:
        TypeError: the receiver's handler is a coroutine function.
    """
    receiver.check_plain()

    def receive() -> flask.Response:
        answer = receiver.answer(
            dict(flask.request.headers),
            flask.request.get_data(),
            method=flask.request.method,
            query=flask.request.args.to_dict(),
        )
        return flask.Response(answer.body, answer.status, list(answer.headers))

    return receive
