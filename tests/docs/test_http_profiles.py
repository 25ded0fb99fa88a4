"""Each row of the table of profiles in docs/reference/http.md holds for the rules that the page prints."""

import asyncio
import json
from functools import cache

import httpx

from onceward import Once
from onceward.web import AsgiIdempotency
from printed.pages import run, section
from tables import each
from web.asgi import answer

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
HEADERS = {"as_paypal": "PayPal-Request-Id", "as_square": None}  # Square's is a field of the body


@cache
class Server:
    """A server with the rules of a profile. It takes an amount: 400 for 0, 500 for less, else 201 and a new number."""

    def __init__(self, name):
        self.name, self.begun = name, 0
        self.longest = RULES[name].length[1]
        self._app = AsgiIdempotency(self._pay, Once("memory:"), RULES[name], name="pay")

    async def _pay(self, scope, receive, send):
        amount = json.loads((await receive())["body"])["amount"]
        self.begun += 1
        body = b'{"number": %d}' % self.begun
        await asyncio.sleep(0.02)
        await answer(send, 201 if amount > 0 else 400 if amount == 0 else 500, body)

    def ask(self, key, amount=5, caller="me", times=1):
        """Send a request, or several at once; return the answers, and how often the endpoint ran."""
        body, headers, begun = {"amount": amount}, {"X-Api-Key": caller}, self.begun
        if header := HEADERS.get(self.name, "Idempotency-Key"):
            headers[header] = f'"{key}"' if self.name in {"default", "as_draft"} else key
        else:
            body["idempotency_key"] = key

        async def main():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://server") as client:
                return await asyncio.gather(*(client.post("/", json=body, headers=headers) for _ in range(times)))

        return [(one.status_code, one.content) for one in asyncio.run(main())], self.begun - begun


def length_of_a_key(server, said):
    for length, expected in ((server.longest, (2, 1)), (server.longest + 1, (4, 0))):
        ((status, _),), ran = server.ask("k" * length)
        assert (status // 100, ran) == expected
    assert str(server.longest) in said or said in {"-", "the server's choice"}


def the_request_again(server, said):
    first, ran = server.ask("again")
    assert (first[0][0], ran) == (201, 1)
    assert server.ask("again") == (first, 0)
    assert ("latest" in said) is (server.name == "as_paypal")  # which the page says is not followed


def another_request_under_that_key(server, said):
    server.ask("another")
    ((status, _),), ran = server.ask("another", 6)
    assert (status, ran) == (422, 0)


def the_first_request_still_runs(server, said):
    answers, ran = server.ask("together", times=8)
    assert ({status for status, _ in answers}, ran) == ({201, 409}, 1)
    assert len({one for one in answers if one[0] == 201}) == 1


def the_endpoint_answered_4xx(server, said):
    first, _ = server.ask("refused", 0)
    assert first[0][0] == 400
    assert server.ask("refused", 0)[1] == 0


def the_endpoint_answered_500(server, said):
    first, _ = server.ask("failing", -1)
    assert first[0][0] == 500
    assert server.ask("failing", -1)[1] == (0 if server.name == "as_stripe" else 1)
    assert ("runs again" in said) is (server.name == "default")


def whose_key_it_is(server, said):
    mine, _ = server.ask("whose")
    theirs, ran = server.ask("whose", caller="you")
    assert (theirs[0][0], ran) == (201, 1)
    assert theirs != mine


CHECKED = (length_of_a_key, the_request_again, another_request_under_that_key, the_first_request_still_runs)
CHECKED += (the_endpoint_answered_4xx, the_endpoint_answered_500, whose_key_it_is)
CHECKS = {check.__name__.replace("_", " "): check for check in CHECKED}


@each("name", PROFILES)
@each("row", CHECKS)
def test_the_rules_do_what_the_row_says(row, name):
    CHECKS[row](Server(name), ROWS[row][name])


def test_the_page_says_that_the_draft_itself_replays_a_500():
    assert CHECKS.keys() <= ROWS.keys()
    assert ROWS["the endpoint answered 500"]["as_draft"] == "the first result"
    assert "`record=`" in ROWS["the endpoint answered 500"]["default"]
