"""Runs a part of the page on data engines: PAGE FOLDER URL PART. Workers are killed between an effect and its record."""

import json
import os
import sys
import tempfile
from pathlib import Path

from faults.crashing_bank import Bank
from printed.pages import run

document, folder, url, part = sys.argv[1:]
FOLDER = Path(folder)
ORDERS = [{"id": f"o{number}", "cents": 5} for number in range(80)]
CHARGED = [f"charged {order['id']}" for order in ORDERS]
bank = Bank(FOLDER, "java" if part.startswith("spark") else "")
replaced = {"postgresql://worker@db/shop": url, "lease=30": "lease=4"}
page = run(document, {"bank": bank}, replaced, "Spark, Dask, Ray")


def spark(until):
    """Charge what is in files, and die after batch ``until``."""
    import pyspark

    home = FOLDER / "spark"  # where it writes what executors print
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(home))
    write, files = page["write"], FOLDER / "orders"

    def write_and_die(orders, batch_id):
        write(orders, batch_id)
        if batch_id == until:
            os._exit(9)  # the rows are recorded, and the batch is not

    page["write"] = write_and_die
    if not files.exists():
        files.mkdir()
        for number in range(4):
            rows = ORDERS[20 * number : 20 * number + 20]
            (files / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"executor.memory": "700m", "ui.enabled": False}
    options |= {"sql.files.maxPartitionBytes": 250, "sql.files.openCostInBytes": 0}
    builder = pyspark.sql.SparkSession.builder.master("local-cluster[2,1,700]")
    for name, value in options.items():
        builder = builder.config(f"spark.{name}", value)
    session = builder.getOrCreate()
    orders = session.readStream.schema("id string, cents int").option("maxFilesPerTrigger", 2).json(str(files))
    query = page["charge_stream"](orders, f"{folder}/checkpoint")
    query.processAllAvailable()
    query.stop()
    session.stop()


def dask():
    from distributed import Client, LocalCluster

    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        # A nanny may not start a worker again that was killed while a busy machine started it.
        cluster.adapt(minimum=2, maximum=2)
        assert page["charge_with_dask"](client, ORDERS) == CHARGED


def ray():
    import ray

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:  # for the names of sockets
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=short)
        assert ray.get([page["charge_with_ray"].remote(order) for order in ORDERS]) == CHARGED
        ray.shutdown()


if __name__ == "__main__":
    if not (FOLDER / "asked").exists():
        bank.crash(["o3", "o17", "o44", "o71"])
    {"spark": lambda: spark(None), "spark dies": lambda: spark(1), "dask": dask, "ray": ray}[part]()
    assert bank.paid() == sorted(order["id"] for order in ORDERS), bank.paid()
    assert len(bank.asked()) > len(ORDERS), "nobody was killed"
    print("each once, asked", len(bank.asked()))
