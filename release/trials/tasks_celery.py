"""A task that runs at once, twice for one order."""

from celery import Celery

from onceward import Once
from onceward.celery import exactly

app = Celery("shop", broker="redis://127.0.0.1:1/0")
app.conf.update(task_always_eager=True, task_acks_late=True, task_eager_propagates=True)
once = Once("sqlite:///celery.db")
calls = []


@app.task
@exactly(once, key="order.id")
def charge(order):
    calls.append(order)
    return f"charged {order['id']}"


assert charge.delay({"id": 1}).get() == charge.delay({"id": 1}).get() == "charged 1"
assert len(calls) == 1
