"""A task that gets one order twice, on Procrastinate's connector for tests."""

from procrastinate import App
from procrastinate.testing import InMemoryConnector

from onceward import Once
from onceward.procrastinate import exactly

app = App(connector=InMemoryConnector())
once = Once("sqlite:///procrastinate.db")
calls = []


@exactly(once, key="order_id", name="ship")
@app.task(queue="orders")
def ship(order_id: int) -> None:
    calls.append(order_id)


ship.defer(order_id=1)
ship.defer(order_id=1)
app.run_worker(wait=False, install_signal_handlers=False)
assert calls == [1]
