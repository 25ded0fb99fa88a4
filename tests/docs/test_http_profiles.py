"""Each row of the table of profiles in docs/reference/http.md holds for the rules that the page prints."""

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


def length_of_a_key(name, said):
    assert (report(name)["longest"].verdict, report(name)["too long"].verdict) == ("holds", "holds")
    assert str(RULES[name].length[1]) in said or said in {"-", "the server's choice"}


def the_request_again(name, said):
    assert report(name)["replay"].verdict == "holds"
    assert ("latest" in said) is (name == "as_paypal")  # which the page says is not followed


def the_endpoint_answered_500(name, said):
    kind = report(name)["failure"].evidence.partition(":")[0]
    assert kind == ("replayed" if name == "as_stripe" else "again")
    assert ("runs again" in said) is (name == "default")


def the_endpoint_answered_4xx(name, said):
    assert report(name)["refusal"].evidence.startswith("replayed")


def holds(check, evidence=""):
    """Return what looks for the verdict of a check and for a word of its evidence."""

    def look(name, said):
        found = report(name)[check]
        assert found.verdict == "holds"
        assert evidence in found.evidence

    return look


CHECKS = {
    "length of a key": length_of_a_key,
    "the request again": the_request_again,
    "another request under that key": holds("reused", "422"),
    "the first request still runs": holds("concurrent", "409"),
    "the endpoint answered 4xx": the_endpoint_answered_4xx,
    "the endpoint answered 500": the_endpoint_answered_500,
    "whose key it is": holds("scope"),
}


@each("name", PROFILES)
@each("row", CHECKS)
def test_the_rules_do_what_the_row_says(row, name):
    CHECKS[row](name, ROWS[row][name])


def test_the_draft_itself_replays_a_500_and_the_page_says_that_ours_does_not():
    assert CHECKS.keys() <= ROWS.keys()
    assert ROWS["the endpoint answered 500"]["as_draft"] == "the first result"
    assert report("as_draft")["failure"].evidence.startswith("again")
    assert "`record=`" in ROWS["the endpoint answered 500"]["default"]
