"""Runs the page on agent frameworks, in an environment that has them, and drives each tool as its framework does."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TypedDict

import agents
from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai.types import Content, FunctionCall, Part
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from strands import Agent as StrandsAgent
from strands.models import Model

from printed.pages import run

document, folder, *point = sys.argv[1:]
charged = []


def charge(order, cents):
    charged.append(order)
    return f"charged {order}"


def die(event):
    """End the process when the effect is recorded, and the framework does not know it yet."""
    if point[1:] == ["crash"] and event.kind == "completed":
        os._exit(9)


replaced = {'"sqlite:///agents.db"': f'"sqlite:///{folder}/a.db", observe=[die]'}
given = {"bank": SimpleNamespace(charge=charge), "die": die}
page = run("docs/how-to/agents.md", given, replaced, "The tools of an agent framework")


class Order(TypedDict):
    order: str
    receipt: str


def once_each(name, results, orders):
    """Check what came back, and that each order was charged once since the last check."""
    assert charged == orders, (name, charged)
    charged.clear()
    print(name, "ok", results)


def langgraph_part(kind, point):
    """Run a graph with an approval up to ``point`` in this process: the approval, the crash after the effect, or the end."""

    def approve(state):
        assert interrupt("charge?") == "yes"

    def graph(act, schema, checkpointer):
        built = StateGraph(schema)
        built.add_node("approve", approve)
        built.add_node("act", act)
        built.add_edge(START, "approve")
        built.add_edge("approve", "act")
        return built.compile(checkpointer=checkpointer)

    order = f"g-{kind}"
    call = {"name": "charge_in_graph", "args": {"order": order, "cents": 5}, "id": "call_1"}
    with SqliteSaver.from_conn_string(f"{folder}/{kind}.db") as saver:
        if kind == "tool":
            runs = graph(ToolNode([page["charge_in_graph"]]), MessagesState, saver)
            begin = {"messages": [AIMessage("", tool_calls=[call])]}
        elif kind == "node":
            runs, begin = graph(page["charge_node"], Order, saver), {"order": order}
        else:

            @entrypoint(checkpointer=saver)
            def runs(order):
                approve(None)
                return {"receipt": page["charge_task"](order, 5).result()}

            begin = order
        steps = {"approval": begin, "crash": Command(resume="yes"), "end": None}
        end = runs.invoke(steps[point], {"configurable": {"thread_id": "t1"}})
        return end["messages"][-1].content if kind == "tool" and point == "end" else (end or {}).get("receipt")


def langgraph():
    for kind in ("tool", "node", "task"):
        for point, status in (("approval", 0), ("crash", 9)):
            done = subprocess.run([sys.executable, __file__, document, folder, kind, point])
            assert done.returncode == status, (kind, point, done)
        assert langgraph_part(kind, "end") == f"charged g-{kind}"
        once_each(f"langgraph, a {kind} after an approval and a kill", "", [])  # the killed process has charged


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
            given = {"deferred_tool_results": approved, "deps": "c-1", "output_type": types}
            end = await agent.run(message_history=history, model=FunctionModel(model), **given)
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


class OpenAiModel(agents.Model):
    """Calls the tool once, and then says what it got."""

    def __init__(self, cents):
        self.arguments = f'{{"order": "o1", "cents": {cents}}}'

    async def get_response(self, *args, **kwargs):
        given = kwargs["input"] if isinstance(kwargs["input"], list) else []
        answers = [one["output"] for one in given if one.get("type") == "function_call_output"]
        call = ResponseFunctionToolCall(
            name="charge_with_openai", call_id="call_1", arguments=self.arguments, type="function_call"
        )
        text = [ResponseOutputText(text=str(answers[-1:]), annotations=[], type="output_text")]
        message = ResponseOutputMessage(id="m", content=text, role="assistant", status="completed", type="message")
        return agents.ModelResponse(output=[message if answers else call], usage=agents.Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def openai_agents():
    """The run begins again, with what the model had answered: its answer is saved, and that of the tool is lost."""
    tool = page["charge_with_openai"]

    def end(cents):
        agent = agents.Agent("shop", model=OpenAiModel(cents), tools=[tool])
        quiet = agents.RunConfig(tracing_disabled=True)
        return agents.Runner.run_sync(agent, "go", context="c-1", run_config=quiet).final_output

    assert [end(5), end(5)] == ["['charged o1']"] * 2
    assert "used before with a different input" in end(6)
    assert set(tool.params_json_schema["properties"]) == {"order", "cents"}
    once_each("openai-agents", "", ["o1"])


class AdkModel(BaseLlm):
    """Calls the tool once, and then says what it got."""

    async def generate_content_async(self, request, stream=False):
        parts = [part for content in request.contents for part in content.parts]
        results = [part.function_response.response for part in parts if part.function_response]
        call = FunctionCall(name="charge_with_adk", args={"order": "a1", "cents": 5})
        part = Part(text=results[-1]["receipt"]) if results else Part(function_call=call)
        yield LlmResponse(content=Content(role="model", parts=[part]))


async def adk_runs(is_resumed):
    """Run an agent of ADK to its end; or go on with the invocation that a process began which was killed."""
    agent = LlmAgent(name="shop", model=AdkModel(model="test"), tools=[page["adk_tool"]])
    app = App(name="shop", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    sessions = SqliteSessionService(f"{folder}/adk.db")
    place = {"user_id": "u", "session_id": "s-1"}
    if is_resumed:
        session = await sessions.get_session(app_name="shop", **place)
        assert not any(event.get_function_responses() for event in session.events)
        more = {"invocation_id": session.events[-1].invocation_id}
    else:
        await sessions.create_session(app_name="shop", **place)
        more = {"new_message": Content(role="user", parts=[Part(text="go")])}
    runner = Runner(app=app, session_service=sessions)
    events = [event async for event in runner.run_async(**place, **more)]
    return [part.text for event in events if event.content for part in event.content.parts if part.text]


def google_adk():
    done = subprocess.run([sys.executable, __file__, document, folder, "adk", "crash"])
    assert done.returncode == 9, done
    assert asyncio.run(adk_runs(is_resumed=True)) == ["charged a1"]
    once_each("google-adk, after a kill", "", [])  # the killed process has charged


class StrandsModel(Model):
    """Calls the tool once, and then says what it got."""

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, *args, **kwargs):
        raise NotImplementedError

    async def stream(self, messages, *args, **kwargs):
        answers = [block["toolResult"] for one in messages for block in one["content"] if "toolResult" in block]
        use = {"toolUseId": "u-1", "name": "charge_with_strands"}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {} if answers else {"toolUse": use}}}
        said = {"toolUse": {"input": '{"order": "s1", "cents": 5}'}}
        yield {"contentBlockDelta": {"delta": {"text": answers[0]["content"][0]["text"]} if answers else said}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if answers else "tool_use"}}


def strands():
    """The run begins again, with what the model had answered: its answer is saved, and that of the tool is lost."""
    for _ in range(2):
        agent = StrandsAgent(model=StrandsModel(), tools=[page["charge_with_strands"]], callback_handler=None)
        assert str(agent("go", invocation_state={"conversation": "c-1"})).strip() == "charged s1"
    once_each("strands", "", ["s1"])


if point:
    asyncio.run(adk_runs(is_resumed=False)) if point[0] == "adk" else langgraph_part(*point)
    sys.exit()
langgraph()
two_threads_with_one_id_of_a_call_are_two_operations()
pydantic_ai_goes_on_after_an_approval_and_a_crash()
a_model_that_calls_again_in_a_new_turn_needs_a_business_key()
openai_agents()
google_adk()
strands()
