"""Each row of the table of profiles in docs/reference/http.md holds for the rules that the page prints."""

import json

import httpx

from http_judge import check
from onceward import Once
from onceward.web import AsgiIdempotency
from printed.pages import run, section
from tables import each
from web.payments import Payments

TITLE = "Whose rules: the draft, Stripe, PayPal, Adyen, Square"
PAGE = section("docs/reference/http.md", TITLE)
PROFILES = ("default", "as_draft", "as_stripe", "as_paypal", "as_adyen", "as_square")
HEADS = {3: ("as_draft", "default"), 5: PROFILES[2:]}  # by the number of a table's columns
CELLS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = {cells[0]: {} for cells in CELLS if cells[0] != "rule"}
for row, *cells in CELLS:
    if row != "rule":
        ROWS[row].update(zip(HEADS[len(cells) + 1], cells, strict=True))
RULES = run("docs/reference/http.md", {}, title=TITLE)
HEADERS = {"as_paypal": "PayPal-Request-Id", "as_square": "body.idempotency_key"}
REPORTS = {}


def report(name):
    """Return what the client says of a server with these rules."""
    if name not in REPORTS:
        payments = Payments()
        guarded = AsgiIdempotency(payments, Once("memory:"), RULES[name], name="pay")
        REPORTS[name] = check(
            guarded,
            body={"amount": 5},
            other={"amount": 6},
            refused={"amount": 0},
            failing={"amount": -1},
            header=HEADERS.get(name, "Idempotency-Key"),
            quoted=name in {"default", "as_draft"},
            headers={"X-Api-Key": "me"},
            stranger={"X-Api-Key": "you"},
            effects=lambda: payments.begun,
            longest=RULES[name].length[1],
        )
    return REPORTS[name]


def ask(name, *requests):
    """Return the answers to requests: (method, headers, body)."""

    async def asked():
        guarded = AsgiIdempotency(Payments(), Once("memory:"), RULES[name], name="pay")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://server") as client:
            return [
                await client.request(method, "/", headers={"X-Api-Key": "me", **headers}, content=json.dumps(body))
                for method, headers, body in requests
            ]

    import asyncio

    return asyncio.run(asked())


def where_the_key_is(name, said):
    assert report(name)["replay"].verdict == "holds"
    bare = ask(name, ("POST", {"Idempotency-Key": "bare"}, {"amount": 5}))[0].status_code
    quotes = {
        "default": "with quotes or without",
        "as_draft": "in quotes",
        "as_stripe": "without",
        "as_adyen": "without",
    }
    expected = {"default": 201, "as_draft": 400, "as_stripe": 201, "as_adyen": 201}
    if name in quotes:
        assert quotes[name] in said
        assert bare == expected[name]
    else:
        assert HEADERS[name].removeprefix("body.") in said


def length_of_a_key(name, said):
    assert (report(name)["longest"].verdict, report(name)["too long"].verdict) == ("holds", "holds")
    assert str(RULES[name].length[1]) in said or said in {"-", "the server's choice"}


def methods(name, said):
    key = {HEADERS.get(name, "Idempotency-Key"): '"k"'} if name != "as_square" else {}
    body = {"amount": 5, "idempotency_key": "k"}
    answers = ask(name, ("PATCH", key, body), ("PATCH", key, body))
    is_guarded = answers[0].json() == answers[1].json()
    assert is_guarded is ("PATCH" in said)


def no_key(name, said):
    (found,) = ask(name, ("POST", {}, {"amount": 5}))
    assert found.status_code == (201 if said == "runs" else 400)


def the_request_again(name, said):
    assert report(name)["replay"].verdict == "holds"
    assert ("latest" in said) is (name == "as_paypal")  # which the page says is not followed


def another_request_under_that_key(name, said):
    assert report(name)["reused"].verdict == "holds"
    assert report(name)["reused"].evidence.startswith("422")


def the_first_one_still_runs(name, said):
    assert report(name)["concurrent"].verdict == "holds"
    assert "409" in report(name)["concurrent"].evidence


def the_endpoint_answered_4xx(name, said):
    assert report(name)["refusal"].evidence.startswith("replayed")


def the_endpoint_answered_500(name, said):
    kind = report(name)["failure"].evidence.partition(":")[0]
    assert kind == ("replayed" if name == "as_stripe" else "again")
    assert ("runs again" in said) is (name == "default")


def whose_key_it_is(name, said):
    assert report(name)["scope"].verdict == "holds"


def form_of_an_error(name, said):
    first = {"Idempotency-Key": '"k"', "PayPal-Request-Id": "k"}
    answers = ask(
        name,
        ("POST", first, {"amount": 5, "idempotency_key": "k"}),
        ("POST", first, {"amount": 6, "idempotency_key": "k"}),
    )
    assert answers[1].status_code == 422
    assert answers[1].headers["content-type"] == "application/problem+json"


CHECKS = {
    function.__name__.replace("_", " "): function
    for function in (
        where_the_key_is,
        length_of_a_key,
        methods,
        no_key,
        the_request_again,
        another_request_under_that_key,
        the_first_one_still_runs,
        the_endpoint_answered_4xx,
        the_endpoint_answered_500,
        whose_key_it_is,
        form_of_an_error,
    )
}


def test_each_row_has_a_check():
    assert ROWS.keys() == CHECKS.keys()


@each("name", PROFILES)
@each("row", CHECKS)
def test_the_rules_do_what_the_row_says(row, name):
    CHECKS[row](name, ROWS[row][name])


def test_the_draft_itself_replays_a_500_and_the_page_says_that_ours_does_not():
    assert ROWS["the endpoint answered 500"]["as_draft"] == "the first result"
    assert report("as_draft")["failure"].evidence.startswith("again")
    assert "`record=`" in ROWS["the endpoint answered 500"]["default"]
