"""Runs the page on agent frameworks, in an environment that has them, and drives each tool as its framework does."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

from agents.tool_context import ToolContext
from google.adk.tools import ToolContext as AdkContext
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from pages import run

document, folder, *point = sys.argv[1:]
charged = []


def charge(order, cents):
    charged.append(order)
    return f"charged {order}"


page = run(
    "docs/how-to/agent-frameworks.md", {"bank": SimpleNamespace(charge=charge)}, {"agents.db": f"/{folder}/a.db"}
)


def once_each(name, results, orders):
    """Check what came back, and that each order was charged once since the last check."""
    assert charged == orders, (name, charged)
    charged.clear()
    print(name, "ok", results)


def langgraph_goes_on_after_an_approval_and_a_kill(point):
    """Run the part of a graph up to ``point`` in this process: the approval, the crash after the effect, or the end."""
    tools = ToolNode([page["charge_in_graph"]])

    def approve(state):
        assert interrupt("charge?") == "yes"

    def act(state, config):
        result = tools.invoke(state, config)
        if point == "crash":
            os._exit(9)  # the effect is recorded, and the checkpoint is not
        return result

    graph = StateGraph(MessagesState)
    graph.add_node("approve", approve)
    graph.add_node("act", act)
    graph.add_edge(START, "approve")
    graph.add_edge("approve", "act")
    call = {"name": "charge_in_graph", "args": {"order": "g1", "cents": 5}, "id": "call_1"}
    thread = {"configurable": {"thread_id": "t1"}}
    begin = {"messages": [AIMessage("", tool_calls=[call])]}
    steps = {"approval": begin, "crash": Command(resume="yes"), "end": None}
    with SqliteSaver.from_conn_string(f"{folder}/graph.db") as saver:
        return graph.compile(checkpointer=saver).invoke(steps[point], thread)


def langgraph():
    for point, status in (("approval", 0), ("crash", 9)):
        done = subprocess.run([sys.executable, __file__, document, folder, point])
        assert done.returncode == status, (point, done)
    end = langgraph_goes_on_after_an_approval_and_a_kill("end")
    assert end["messages"][-1].content == "charged g1"
    once_each("langgraph", "", [])  # the killed process has charged


def two_threads_with_one_id_of_a_call_are_two_operations():
    node = ToolNode([page["charge_in_graph"]])
    graph = StateGraph(MessagesState)
    graph.add_node("act", node)
    graph.add_edge(START, "act")
    call = {"name": "charge_in_graph", "args": {"order": "g2", "cents": 5}, "id": "call_2"}
    for thread in ("a", "b", "a"):
        message = {"messages": [AIMessage("", tool_calls=[call])]}
        graph.compile().invoke(message, {"configurable": {"thread_id": thread}})
    once_each("langgraph, two threads", "", ["g2", "g2"])


def pydantic_ai_goes_on_after_an_approval_and_a_crash():
    def model(messages, info):
        answered = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if answered:
            return ModelResponse([TextPart(answered[0].content)])
        return ModelResponse([ToolCallPart("charge_after_approval", {"order": "p1", "cents": 5}, "call_1")])

    async def main():
        agent = page["agent"]
        types = [str, DeferredToolRequests]
        asked = await agent.run("go", model=FunctionModel(model), deps="c-1", output_type=types)
        saved = ModelMessagesTypeAdapter.dump_json(asked.all_messages())
        ids = [call.tool_call_id for call in asked.output.approvals]
        for _ in range(2):  # the second time is after a crash: nothing but the messages is left
            history = ModelMessagesTypeAdapter.validate_json(saved)
            approved = DeferredToolResults(approvals=dict.fromkeys(ids, True))
            end = await agent.run(
                message_history=history,
                deferred_tool_results=approved,
                model=FunctionModel(model),
                deps="c-1",
                output_type=types,
            )
            assert end.output == "charged p1"

    asyncio.run(main())
    once_each("pydantic-ai", "", ["p1"])


def a_model_that_calls_again_in_a_new_turn_needs_a_business_key():
    made = []
    agent = Agent(deps_type=str)

    @agent.tool
    @page["once"](key=lambda ctx: (ctx.deps, ctx.tool_call_id), fingerprint="order", name="new.turn")
    def charge_by_call(ctx: RunContext[str], order: str) -> str:
        charge(order, 5)
        return "no answer"

    def asking(tool, arguments):
        def model(messages, info):
            made.append(f"call_{len(made)}")
            again = len([m for m in messages if isinstance(m, ModelResponse)]) < 2
            return ModelResponse([ToolCallPart(tool, arguments, made[-1])] if again else [TextPart("done")])

        return FunctionModel(model)

    agent.run_sync("go", model=asking("charge_by_call", {"order": "n1"}), deps="c-1")
    once_each("a new turn, by the id of the call", "twice", ["n1", "n1"])
    page["agent"].run_sync("go", model=asking("pay", {"order": "n2", "cents": 5}), deps="c-1")
    once_each("a new turn, by a business key", "", ["n2"])


def openai_agents():
    async def main():
        arguments = '{"order": "o1", "cents": 5}'
        for _ in range(2):
            context = ToolContext("c-1", tool_name="charge", tool_call_id="call_1", tool_arguments=arguments)
            assert await page["charge_with_openai"].on_invoke_tool(context, arguments) == "charged o1"

    asyncio.run(main())
    assert set(page["charge_with_openai"].params_json_schema["properties"]) == {"order", "cents"}
    once_each("openai-agents", "", ["o1"])


def google_adk():
    async def main():
        for _ in range(2):
            context = Mock(spec=AdkContext, session=SimpleNamespace(id="s-1"), function_call_id="f-1")
            context.tool_confirmation = None
            result = await page["adk_tool"].run_async(args={"order": "a1", "cents": 5}, tool_context=context)
            assert result == {"receipt": "charged a1"}

    asyncio.run(main())
    once_each("google-adk", "", ["a1"])


def strands():
    async def main():
        use = {"toolUseId": "u-1", "name": "charge_with_strands", "input": {"order": "s1", "cents": 5}}
        for _ in range(2):
            stream = page["charge_with_strands"].stream(use, {"conversation": "c-1", "agent": None})
            events = [event async for event in stream]
            assert "charged s1" in str(events[-1])

    asyncio.run(main())
    once_each("strands", "", ["s1"])


if point:
    langgraph_goes_on_after_an_approval_and_a_kill(point[0])
    sys.exit()
langgraph()
two_threads_with_one_id_of_a_call_are_two_operations()
pydantic_ai_goes_on_after_an_approval_and_a_crash()
a_model_that_calls_again_in_a_new_turn_needs_a_business_key()
openai_agents()
google_adk()
strands()
