"""Cold start: a fresh process, from its first import to the first claim answered, which is when the handler begins."""

import os
import statistics
import subprocess
import sys
import tempfile

from measure import table

ROUNDS = 11
SHARE = 1 / 3  # the goal, of Powertools'
START = """
import time
wall, cpu = time.perf_counter(), time.process_time()
def begun():
    print((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)
"""
# Each is written as its documentation says; KEY and URL come from the environment.
CASES = {
    "onceward": """
import os
from onceward import Once
once = Once(f"dynamodb://onceward?region=eu-west-1&endpoint={os.environ['URL']}")
@once(key="order.id")
def handle(order):
    begun()
handle({"id": os.environ["KEY"]})
""",
    "onceward, async": """
import asyncio, os
from onceward import Once
once = Once(f"dynamodb://onceward?region=eu-west-1&endpoint={os.environ['URL']}")
@once(key="order.id")
async def handle(order):
    begun()
asyncio.run(handle({"id": os.environ["KEY"]}))
""",
    "Powertools": """
import os
import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
class Context:
    def get_remaining_time_in_millis(self):
        return 60_000
client = boto3.client("dynamodb", endpoint_url=os.environ["URL"], region_name="eu-west-1")
layer = DynamoDBPersistenceLayer("powertools", boto3_client=client)
config = IdempotencyConfig(event_key_jmespath="id", lambda_context=Context())
@idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
def handle(order):
    begun()
handle(order={"id": os.environ["KEY"]})
""",
    "idemkit, async": """
import asyncio, os
from idemkit import DynamoBackend, MethodConfig, idempotent
async def main():
    backend = DynamoBackend(
        table="idemkit", endpoint_url=os.environ["URL"], region_name="eu-west-1", create_table=False
    )
    @idempotent(backend=backend, config=MethodConfig(key_fields=["order.id"], scope=lambda: "bench"))
    async def handle(order):
        begun()
    await handle({"id": os.environ["KEY"]})
    await backend.aclose()
asyncio.run(main())
""",
    "import boto3, alone": "import boto3\nbegun()",
    "import aioboto3, alone": "import aioboto3\nbegun()",
}


def cold(url: str) -> None:
    """Print the medians."""
    seen: dict[str, list[list[float]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as compiled:
        # Every one of them is loaded from bytecode that the warm-up round has left, whatever the environment says.
        common = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        common |= {"PYTHONPYCACHEPREFIX": compiled, "URL": url}
        for turn in range(ROUNDS + 1):
            for name, code in CASES.items():
                environment = common | {"KEY": f"cold-{name}-{turn}".replace(" ", "")}
                command = [sys.executable, "-c", START + code]
                told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                if turn:
                    seen[name].append([float(part) for part in told.split()])
    medians = {name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in seen.items()}
    theirs = medians["Powertools"]
    rows = []
    for name, (wall, cpu) in medians.items():
        goal = ("<= 1/3", "yes" if wall <= SHARE * theirs[0] else "NO") if "onceward" in name else ("", "")
        rows.append((name, wall, cpu, wall / theirs[0], *goal))
    table(
        f"cold start: ms from the first import to the first claim answered, median of {ROUNDS} interleaved processes",
        ["", "wall", "CPU", "of Powertools", "goal", "met"],
        rows,
    )
