"""The decorator for views of Flask."""

import pytest
from flask import Flask, Response, request, stream_with_context

from onceward import Once, current
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.observe import Event
from onceward.web import flask as of_flask
from web.asgi import statuses
from web.calls import guards

idempotent = guards(of_flask.idempotent)

KEY = {"Idempotency-Key": '"k"'}


@pytest.fixture
def app():
    return Flask(__name__)


@pytest.fixture
def view(app, once):
    """Guard a function and return what posts to it."""

    def guard(function):
        @app.post("/orders/<int:number>")
        @idempotent(once)
        def order(number):
            post.runs += 1
            return function(number)

        def post(**how):
            return app.test_client().post("/orders/7", headers=KEY, **how)

        post.runs = 0
        return post

    return guard


def test_a_body_that_was_read_and_kept_before_counts(app, view):
    app.before_request(lambda: request.get_data() and None)
    post = view(lambda number: [request.get_json()])
    assert [post(json=1).json, post(json=1).json, post(json=2).status_code] == [[1], [1], 422]


def test_a_body_read_before_and_not_kept_is_told_before_anything_runs(app, view, once):
    app.before_request(lambda: request.form and None)
    app.testing = True
    post = view(lambda number: "done")
    with pytest.raises(RuntimeError, match="was read before its idempotency key"):
        post(data={"a": "1"}, content_type="multipart/form-data")
    assert (post.runs, statuses(once)) == (0, [])


def test_an_error_that_the_application_handles_is_recorded_as_its_answer(app, view, once):
    @app.errorhandler(LookupError)
    def missing(error):
        return {"missing": str(error)}, 404

    def find(number):
        raise LookupError("order")

    post = view(find)
    assert [(one.status_code, one.json) for one in (post(), post())] == [(404, {"missing": "order"})] * 2
    assert (post.runs, statuses(once)) == (1, [COMPLETED])


def test_the_route_is_told_as_flask_has_it(app, once):
    told = []
    observe = lambda event: told.append((event.kind, event.route)) if isinstance(event, Event) else None
    order = idempotent(Once(once.store, name="told", observe=[observe]))(lambda number: "done")
    app.add_url_rule("/orders/<int:number>", "order", order, methods=["POST"])
    for _ in range(2):
        app.test_client().post("/orders/7", headers=KEY)
    assert told == [(kind, "POST /orders/<int:number>") for kind in ("claimed", "completed", "replayed")]


def test_a_streamed_response_is_sent_as_made_and_ends_when_it_is_recorded(app, view, once):
    log = []

    def stream(number):
        def parts():
            for part in ("a", "b"):
                log.append(part)
                assert current().record.status == IN_PROGRESS
                yield part
            log.append(request.path)

        return Response(stream_with_context(parts()), 201)

    post = view(stream)
    first = post(buffered=False)
    parts = first.iter_encoded()
    assert [next(parts), log, statuses(once)] == [b"a", ["a"], [IN_PROGRESS]]
    assert [*parts, log, statuses(once)] == [b"b", ["a", "b", "/orders/7"], [COMPLETED]]
    first.close()
    assert [post().data, post.runs] == [b"ab", 1]
