"""Tools of an MCP server that are guarded: one effect for each key, and words that a model can act on."""

import asyncio
import threading
from typing import Annotated

import mcp_types as types
import pytest
from fastmcp.dependencies import Depends
from fastmcp.tools import ToolResult
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Resolve

from commands.mcp_tools import called, mark, text
from faults.injected import Faults, fail_before, settling, when
from onceward import Claim, Once, errors, mcp, stores
from onceward.cli.mcp_tools import ToolError, _changes, _reporting
from onceward.dashboard.actions import version_of
from onceward.mcp.results import Results, recorded
from onceward.stores.audit import entries_of
from tables import each

ONE = {"idempotency_key": "key-1"}


NAME = "shop.test_mcp_tools.charging.<locals>.charge"


def charging(shop, once, key=None, **options):
    """Add a tool to a shop, and return the orders for which it has run."""
    ran = []
    options.setdefault("scope", mcp.ToolScope.EVERYBODY)

    @shop.server.tool()
    @mcp.exactly(once, key=key or mcp.ToolKey.argument(), **options)
    def charge(order: str, amount: int = 1) -> dict[str, int]:
        """Charge an order."""
        ran.append(order)
        if amount < 0:
            raise ValueError("secret of the shop")
        return {"charged": amount}

    return ran


def test_a_duplicate_gets_the_recorded_result_with_a_mark(shop, once):
    ran = charging(shop, once)
    first, second = (shop.call("charge", order="o", amount=3, **ONE) for _ in range(2))
    assert (first.structured_content, first.is_error, mark(first, "replayed")) == ({"charged": 3}, False, None)
    assert (second.structured_content, second.content) == (first.structured_content, first.content)
    assert (mark(second, "replayed"), ran) == (True, ["o"])


def test_the_model_sees_when_to_give_the_same_key_and_neither_claim_nor_context(shop, once):
    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY)
    def charge(order: str, claim: Claim, amount: int = 1) -> str:
        """Charge an order."""
        return claim.key()

    schema = shop.tools()["charge"].input_schema
    assert set(schema["properties"]) == {"order", "amount", "idempotency_key"}
    assert set(schema["required"]) == {"order", "idempotency_key"}
    assert "same value" in schema["properties"]["idempotency_key"]["description"]
    keys = [text(shop.call("charge", order="o", idempotency_key=key)) for key in ("a", "a", "b")]
    assert keys[0] == keys[1] != keys[2]


def test_the_key_comes_from_the_first_place_that_has_one(shop, once):
    ran = charging(shop, once, [mcp.ToolKey.CALL, mcp.ToolKey.META, mcp.ToolKey.argument(), "order"])
    names = {place: shop.call("charge", order="o", **call) for place, call in {
        "call": {"field": "k", "meta": {"claudecode/toolUseId": "t"}, **ONE},
        "claudecode/toolUseId": {"meta": {"claudecode/toolUseId": "t"}, **ONE},
        "onceward/idempotencyKey": {"meta": {"onceward/idempotencyKey": "k", "claudecode/toolUseId": "t"}},
        "argument": ONE,
        "arguments": {},
    }.items()}  # fmt: skip
    assert not any(result.is_error for result in names.values())
    assert len(ran) == 5
    assert {record.key for record, _ in once.ledger.records()} == {
        f"{NAME}:k:call:*",
        f"{NAME}:t:claudecode/toolUseId:*",
        f"{NAME}:k:onceward/idempotencyKey:*",
        f"{NAME}:key-1:argument:*",
        f"{NAME}:o:arguments:*",
    }


def test_without_a_key_nothing_runs_and_the_model_reads_which_argument_to_give(shop, once):
    ran = charging(shop, once, [mcp.ToolKey.META, mcp.ToolKey.argument()])
    refused = shop.call("charge", order="o")
    assert (refused.is_error, mark(refused, "refused"), ran) == (True, "key", [])
    assert "Give idempotency_key: a new one for a new operation" in text(refused)
    for bad in ({"x": 1}, "x" * 256, True):
        assert mark(shop.call("charge", order="o", meta={"claudecode/toolUseId": bad}), "refused") == "key", bad
    assert ran == []


def test_the_same_key_with_other_arguments_is_refused(shop, once):
    ran = charging(shop, once)
    shop.call("charge", order="o", **ONE)
    same = shop.call("charge", order="o", amount=1, **ONE)  # the default, said aloud
    other = shop.call("charge", order="o", amount=2, **ONE)
    assert (mark(same, "replayed"), other.is_error, mark(other, "refused"), ran) == (True, True, "mismatch", ["o"])
    assert "give a new key" in text(other)


class Database:
    """A new one for each call, which no fingerprint can be taken of."""


def database() -> Database:
    return Database()


FROM_FASTMCP = Depends(database)


def charge_in_sdk(order: str, database: Annotated[Database, Resolve(database)]) -> str:
    return type(database).__name__


def charge_in_fastmcp(order: str, database: Database = FROM_FASTMCP) -> str:
    return type(database).__name__


def test_what_the_library_fills_in_is_no_argument_that_must_be_the_same(shop, once):
    charge = charge_in_sdk if shop.is_sdk else charge_in_fastmcp
    mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY, server=shop.server)(charge)
    results = [shop.call(charge.__name__, order=order, **ONE) for order in ("o", "o", "p")]
    assert [text(result) for result in results[:2]] == ["Database"] * 2
    assert [mark(result, "replayed") for result in results[:2]] == [None, True]
    assert mark(results[2], "refused") == "mismatch"


async def test_a_client_that_cancels_does_not_free_the_key_and_is_told_when_to_call_again(shop, once):
    entered, cancelled, ran = asyncio.Event(), asyncio.Event(), []

    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY, lease=30)
    async def slow(order: str) -> str:
        ran.append(order)
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "done"

    async with shop.session() as session:
        first = asyncio.create_task(called(session, "slow", {"order": "o", **ONE}))
        await entered.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(cancelled.wait(), 30)  # the server has heard of it
        busy = await called(session, "slow", {"order": "o", **ONE})
        assert (busy.is_error, mark(busy, "refused"), ran) == (True, "busy", ["o"])
        assert 1 <= mark(busy, "retryAfter") <= 30
        assert "with the same key" in text(busy)


async def test_a_plain_function_that_its_client_cancels_goes_on_and_a_duplicate_waits_for_it_with_progress(shop, once):
    entered, go, ran, told = threading.Event(), threading.Event(), [], []

    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY, on_busy=30)
    def slow(order: str) -> str:
        ran.append(order)
        entered.set()
        assert go.wait(30)
        return "done"

    async def progress(now, total, message):
        told.append((total, message))
        go.set()

    async with shop.session() as session:
        first = asyncio.create_task(called(session, "slow", {"order": "o", **ONE}))
        assert await asyncio.to_thread(entered.wait, 30)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = await session.call_tool("slow", {"order": "o", **ONE}, progress_callback=progress)
        assert (text(again), mark(again, "replayed"), ran) == ("done", True, ["o"])
    assert told[0] == (30, "an earlier call is running: waiting for its result")


def test_an_error_of_the_tool_frees_the_key_and_keeps_the_words_of_its_library(shop, once):
    ran = charging(shop, once)
    failed = [shop.call("charge", order="o", amount=-1, **ONE) for _ in range(2)]
    assert [result.is_error for result in failed] == [True, True]
    assert [mark(result, "refused") for result in failed] == [None, None]
    assert ran == ["o", "o"]
    assert ("secret" in text(failed[0])) is not shop.is_sdk  # the SDK hides it, and FastMCP shows it by default


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("final", [(), (mcp.ToolFailed,)])
def test_a_returned_error_is_recorded_only_if_the_owner_says_so(shop, once, final, own):
    ran, kind = [], ToolResult if own and not shop.is_sdk else types.CallToolResult

    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY, final=final)
    async def charge(order: str) -> kind:
        ran.append(order)
        return kind(content=[types.TextContent(type="text", text="declined")], is_error=True)

    results = [shop.call("charge", order="o", **ONE) for _ in range(2)]
    assert [(result.is_error, text(result)) for result in results] == [(True, "declined")] * 2
    assert len(ran) == (1 if final else 2)


def test_a_parked_key_tells_the_model_to_ask_a_person_until_it_is_settled(shop, once):
    charging(shop, once, on_error="park")
    shop.call("charge", order="o", amount=-1, **ONE)
    parked = shop.call("charge", order="o", amount=-1, **ONE)
    assert (parked.is_error, mark(parked, "refused")) == (True, "parked")
    assert "ask the operator" in text(parked)
    assert "secret" not in text(parked)
    once.ledger.settle(f"{NAME}:key-1:argument:*", {"charged": 7})
    settled = shop.call("charge", order="o", amount=-1, **ONE)
    assert (settled.structured_content, mark(settled, "replayed")) == ({"charged": 7}, True)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_that_asks_its_client_first_runs_again_with_the_answer_under_the_same_key(once, is_async):
    server, asked, ran = MCPServer("shop"), [], []

    def charge(order: str, ctx: Context) -> str | types.InputRequiredResult:
        ran.append(order)
        if ctx.input_responses is None:
            once.claim("stock", name="inner").__enter__()  # it stays open: its effect may have happened
            schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
            ask = types.ElicitRequest(params=types.ElicitRequestFormParams(message="Really?", requested_schema=schema))
            return types.InputRequiredResult(input_requests={"sure": ask})
        return "charged"

    async def charge_async(order: str, ctx: Context) -> str | types.InputRequiredResult:
        return charge(order, ctx)

    guard = mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY, on_error="park")
    server.tool("charge")(guard(charge_async if is_async else charge))

    async def answer(context, params):
        asked.append(params)
        return types.ElicitResult(action="accept", content={"yes": True})

    async with Client(server, elicitation_callback=answer) as client:
        first, second = [await client.call_tool("charge", {"order": "o", **ONE}) for _ in range(2)]
    assert (text(first), text(second), mark(second, "replayed")) == ("charged", "charged", True)
    assert (ran, len(asked), once.ledger.show("inner:stock")[0].status) == (["o", "o"], 1, "IN_PROGRESS")


def charge(order: str, idempotency_key: str = "") -> str:
    return order


async def coroutine(context):
    return "alice"


@each(
    ("options", "says"),
    [
        ({"scope": None}, r"scope=None: say which caller a key belongs to"),
        ({"scope": "alice"}, "scope='alice'"),
        ({"scope": coroutine}, "nobody would await it"),
        ({"key": []}, "key= is empty"),
        ({"key": "number"}, "names no parameter of charge"),
        ({"key": mcp.ToolKey.argument()}, "has a parameter idempotency_key already"),
        ({"on_busy": "skip"}, 'on_busy="skip" would answer with nothing'),
        ({"once": "sqlite:///x.db"}, "give an Once"),
        ({"function": Once("memory:")(key="order")(charge)}, "is guarded already"),
    ],
)
def test_what_is_missing_or_wrong_is_refused_before_the_server_starts(options, says):
    given = {"once": Once("memory:", name="shop"), "key": "order", "scope": mcp.ToolScope.EVERYBODY, **options}
    function, once = given.pop("function", charge), given.pop("once")
    with pytest.raises((TypeError, ValueError), match=says):
        mcp.exactly(once, **{name: value for name, value in given.items() if value is not None})(function)


def test_a_tool_whose_key_was_taken_from_it_does_not_claim_to_be_done(shop, once):
    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY)
    async def charge(order: str, claim: Claim) -> str:
        once.ledger.clear(claim.record.key, live=True)
        return "charged"

    lost = shop.call("charge", order="o", **ONE)
    assert (lost.is_error, mark(lost, "refused")) == (True, "lost")
    assert "not known whether this was done" in text(lost)


def test_an_effect_that_cannot_be_recorded_gives_its_result_and_forbids_another_call(shop):
    store = Faults(stores.open_store("memory:"), when(settling, fail_before()))
    ran = charging(shop, Once(store, name="shop", lease=0.3, on_lapse="park", on_busy=10))
    result = shop.call("charge", order="o", **ONE)
    assert (result.is_error, mark(result, "refused"), mark(result, "retryAfter")) == (True, "unrecorded", None)
    assert "Do not call again, also not with a new key" in text(result)
    assert '"charged":1' in text(result)  # the only place that has it now
    assert "key-1" not in text(result)
    store.plan = lambda _: None
    again = shop.call("charge", order="o", **ONE)
    assert (mark(again, "refused"), ran) == ("parked", ["o"])


def test_the_helper_of_a_client_does_not_call_a_tool_again_whose_effect_could_not_be_recorded():
    server, ran = MCPServer("shop"), []
    once = Once(Faults(stores.open_store("memory:"), when(settling, fail_before())), name="shop", lease=0.3)

    @server.tool(annotations=types.ToolAnnotations(idempotent_hint=True))
    @mcp.exactly(once, key=mcp.ToolKey.META, scope=mcp.ToolScope.EVERYBODY)
    async def charge(order: str) -> str:
        ran.append(order)
        return "charged"

    result = asyncio.run(mcp.call_tool(lambda: Client(server), "charge", {"order": "o"}))
    assert (mark(result, "refused"), ran) == ("unrecorded", ["o"])


@pytest.mark.parametrize(("own", "charged"), [(False, object()), (True, object()), (True, "\ud800")], ids="123")
def test_a_result_that_cannot_be_shown_is_no_reason_to_run_again(shop, once, charged, own):
    ran, kind = [], types.CallToolResult if own else dict[str, int]

    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY)
    async def charge(order: str) -> kind:
        ran.append(order)
        value = {"charged": charged}
        return kind(content=[], structured_content=value) if own else value

    results = [shop.call("charge", order="o", **ONE) for _ in range(2)]
    assert ran == ["o"]
    assert all(result.is_error and "has done its work" in text(result) for result in results)


def test_a_result_of_which_pydantic_warns_is_recorded_as_it_is():  # warnings are errors here
    def charge() -> types.CallToolResult: ...

    odd = types.TextContent.model_construct(type="text", text="paid", annotations="x")
    result = Results(charge, "context").convert(None, types.CallToolResult(content=[odd]))
    assert recorded(result)["onceward/result"]["content"] == [{"type": "text", "text": "paid", "annotations": "x"}]


def test_a_tool_whose_body_has_not_begun_has_failed(shop, once):
    @shop.server.tool()
    @mcp.exactly(once, key=mcp.ToolKey.argument(), scope=mcp.ToolScope.EVERYBODY)
    def charge(order: str) -> str:
        return coroutine(order)

    assert shop.call("charge", order="o", **ONE).is_error
    assert [record.status for record, _ in once.ledger.records()] == ["RELEASED"]


def test_an_action_whose_reply_was_lost_is_not_told_as_failed(monkeypatch):
    once = Once("memory:")
    once.acquire("a", name="shop").park("x")
    version, swap = version_of(once.ledger.show("shop:a")[0]), once.store.swap

    def lost(*arguments):
        yield from swap(*arguments)
        raise errors.StoreError("the reply was lost")

    with monkeypatch.context() as patched:
        patched.setattr(once.store, "swap", lost)
        with pytest.raises(ToolError, match="the reply was lost"):
            _reporting(_changes(once.ledger)[0])("shop:a", version, "the cause is fixed")
    (entry,) = entries_of(once.ledger, "shop:a")
    assert entry.end is None
    assert once.ledger.show("shop:a")[0].status == "RELEASED"
