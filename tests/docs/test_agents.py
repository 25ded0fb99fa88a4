"""The pages on agents run as they are printed."""

import asyncio

from mcp import Client

from commands.mcp_tools import mark, text
from printed.pages import run


class Bank:
    """A bank that knows keys."""

    def __init__(self):
        self.charged, self.refunded = {}, []

    def charge(self, order, amount, idempotency_key):
        return self.charged.setdefault(idempotency_key, f"receipt {len(self.charged) + 1}")

    def refund(self, order, amount):
        self.refunded.append(order)
        return "refunded"


def test_guarding_the_tools_of_an_mcp_server():
    bank = Bank()
    names, memory = {"__name__": "shop", "bank": bank}, {"sqlite:///tools.db": "memory:"}
    page = run("docs/how-to/agents.md", names, memory, "The tools of an MCP server")
    run("docs/how-to/agents.md", page, title="Call a tool again after a lost reply")

    async def main():
        async with Client(page["server"]) as client:
            order = {"order": "o", "amount": 5, "idempotency_key": "a"}
            charges = [await client.call_tool("charge", order) for _ in range(2)]
            refunds = [await client.call_tool("refund", {"order": "o", "amount": 5}) for _ in range(2)]
            hints = {tool.name: tool.annotations.idempotent_hint for tool in (await client.list_tools()).tools}
            page["Client"] = lambda _: Client(page["server"])
            return charges, refunds, hints, [await page["pay"]("p") for _ in range(2)]

    charges, refunds, hints, paid = asyncio.run(main())
    assert [result.structured_content for result in charges] == [{"receipt": "receipt 1"}] * 2
    assert [mark(result, "replayed") for result in charges + refunds] == [None, True] * 2
    assert (text(refunds[1]), bank.refunded) == ("refunded", ["o"])
    assert hints == {"charge": True, "refund": True}
    assert paid == ["receipt 2"] * 2
