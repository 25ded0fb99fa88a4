"""``http_judge`` judges servers: ours, in process and over TCP, and servers that are wrong in one way each."""

from http_judge import check
from onceward import Once
from onceward.web import AsgiIdempotency, Rules, Scope
from tables import each
from web.payments import Payments, answer

ALL = ["first", "replay", "missing", "reused", "concurrent", "scope", "longest", "too long", "refusal", "failure"]
BODIES = {"body": {"amount": 5}, "other": {"amount": 6}, "refused": {"amount": 0}, "failing": {"amount": -1}}
CALLERS = {"headers": {"X-Api-Key": "me"}, "stranger": {"X-Api-Key": "you"}}


def judged(target, payments=None, **more):
    effects = None if payments is None else lambda: payments.begun
    return check(target, effects=effects, **{**BODIES, **CALLERS, **more})


@each("counts", [True, False])
@each("wait", [None, 5])
def test_our_middleware_holds_every_point(counts, wait):
    payments = Payments()
    guarded = AsgiIdempotency(payments, Once("memory:"), Rules(scope=Scope.CREDENTIAL), name="pay", wait=wait)
    report = judged(guarded, payments if counts else None, expect={"refusal": "replayed", "failure": "again"})
    assert [point.name for point in report.points] == ALL
    assert [point.verdict for point in report.points] == ["holds"] * len(ALL), str(report)


class Wrong:
    """A server that keeps answers in a dict, and does one thing wrong."""

    def __init__(self, fault):
        self.fault, self.payments, self.answers = fault, Payments(), {}

    async def __call__(self, scope, receive, send):
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = given = (await receive())["body"]
        key, caller = headers.get("idempotency-key"), headers["x-api-key"]
        if key is None and self.fault != "missing":
            return await answer(send, 400, {})
        if key is not None and len(key) > 257 and self.fault != "too long":
            return await answer(send, 400, {})
        if key is not None and len(key) > 200 and self.fault == "longest":
            return await answer(send, 400, {})
        if caller == "nobody":
            return await answer(send, 401, {})
        shared = self.fault in {"scope", "scope by body"}
        place = (key, "" if shared else caller)
        if self.fault == "scope by body":
            body = body + caller.encode()
        if key is not None and self.fault != "replay" and place in self.answers:
            before, sent = self.answers[place]
            if before != body and self.fault != "reused":
                return await answer(send, 422, {})
            if sent is None:
                return await answer(send, 409, {})
            for message in sent:
                await send(message)
            return None
        sent = []
        if self.fault != "concurrent":
            self.answers[place] = (body, None)

        async def receiving():
            return {"type": "http.request", "body": given, "more_body": False}

        async def keeping(message):
            sent.append(message)
            await send(message)

        if self.fault == "first":
            await answer(keeping, 500, {})
        else:
            await self.payments(scope, receiving, keeping)
        self.answers[place] = (body, sent)


@each(
    ("fault", "fails"),
    [
        ("first", {"first", "concurrent", "scope", "longest", "refusal"}),
        ("replay", {"replay", "reused", "concurrent"}),
        ("missing", {"missing"}),
        ("reused", {"reused"}),
        ("concurrent", {"concurrent"}),
        ("scope", {"scope"}),
        ("scope by body", {"scope"}),
        ("longest", {"longest"}),
        ("too long", {"too long"}),
    ],
)
def test_a_server_that_is_wrong_fails_the_points_about_that(fault, fails):
    report = judged(Wrong(fault))
    assert {point.name for point in report.failed} == fails, str(report)


def test_what_nothing_was_given_for_is_unknown():
    report = check(Wrong(None), body={"amount": 5}, other={"amount": 6}, headers={"X-Api-Key": "me"}, longest=None)
    assert {point.name for point in report.points if point.verdict == "unknown"} == {"scope", "refusal", "failure"}
    assert not report.failed
    assert str(report).splitlines()[0].split()[:3] == ["holds", "first", "201"]
