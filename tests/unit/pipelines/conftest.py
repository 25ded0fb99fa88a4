"""A folder with the file of a pipeline, its input, and the functions that it calls."""

import asyncio
import json
import sys
import textwrap
import uuid

import pytest

from onceward.consumers.delivery import Delivery
from onceward.pipelines import load
from onceward.pipelines.pipeline import PipelineRun, examine

HEAD = "name: orders\nsource: {ndjson: {files: [orders.ndjson]}}\n"


class PipelineFolder:
    """The functions are in a module of its own; ``SHOP`` in the text of the file is its name, ``made`` is its list."""

    def __init__(self, folder):
        self.folder = folder
        self.module = f"shop_{uuid.uuid4().hex}"
        self.ledger = f"sqlite:///{folder}/ledger.db"
        self.file = folder / "orders.yaml"
        self.lines()

    def functions(self, text):
        self.folder.joinpath(f"{self.module}.py").write_text("made = []\n" + textwrap.dedent(text))

    def lines(self, *values):
        self.folder.joinpath("orders.ndjson").write_text("".join(f"{json.dumps(value)}\n" for value in values))

    def write(self, text, head=HEAD, guard="guard: {key: message.id}\n"):
        body = textwrap.dedent(text).replace("SHOP", self.module)
        self.file.write_text(f"{head}{guard}{body}")
        return self

    @property
    def made(self):
        return sys.modules[self.module].made

    def load(self, ledger=None):
        return load(self.file, ledger=ledger or self.ledger)

    def mistakes(self):
        """Return line, column and text of each mistake; a warning's text begins with WARNING."""
        _, found = examine(self.file)
        return [(one.place.line, one.place.column, "WARNING " * one.is_warning + one.text) for one in found]

    def run(self, ledger=None):
        outcomes = []
        asyncio.run(PipelineRun(self.load(ledger), outcomes.append).run_async())
        return outcomes

    def handle(self, data, number=0, ledger=None):
        delivery = Delivery("test", {"number": number})
        delivery.id = delivery.key = f"delivery-{number}"
        delivery.data = data
        return asyncio.run(_handled(self.load(ledger), delivery))


async def _handled(pipeline, delivery):
    try:
        return await pipeline.flow().handle(delivery)
    finally:
        await pipeline.close()


@pytest.fixture
def pipelines(tmp_path, monkeypatch):
    """A folder for a pipeline."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = PipelineFolder(tmp_path)
    yield found
    sys.modules.pop(found.module, None)
