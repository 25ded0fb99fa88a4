"""Runs the page on Airflow, which reads this file again for its DAGs: PAGE FOLDER. The first process is killed between an effect and its record."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from faults.crashing_bank import Bank
from printed.pages import run

document, folder = sys.argv[1:]
FOLDER, WHEN = Path(folder), datetime(2026, 1, 1, tzinfo=UTC)
if __name__ == "__main__":
    (FOLDER / "dags").mkdir(exist_ok=True)
    if not (FOLDER / "dags" / "shop.py").exists():
        (FOLDER / "dags" / "shop.py").symlink_to(__file__)
    os.environ.update(
        AIRFLOW_HOME=folder, AIRFLOW__CORE__LOAD_EXAMPLES="False", AIRFLOW__CORE__DAGS_FOLDER=f"{folder}/dags"
    )
    from airflow.utils.db import initdb

    initdb()

bank = Bank(FOLDER)
replaced = {"sqlite:///flows.db": f"sqlite:///{folder}/flows.db", "lease=60": "lease=5", "seconds=5": "seconds=0"}
page = run(document, {"bank": bank}, replaced, "Airflow")
shop = page["shop_dag"]

if __name__ == "__main__":
    if not (FOLDER / "asked").exists():
        bank.crash(["a2"])
    for _ in range(2):  # the second time, as when somebody clears the tasks
        state = page["shop_dag"].test(run_after=WHEN, logical_date=WHEN).state
        assert state == "success", state
    assert (bank.paid(), sorted(bank.asked())) == (["a1", "a2"], ["a1", "a2", "a2"]), bank.asked()
    print("each once")
