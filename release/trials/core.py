"""A guarded function on SQLite: once run, once replayed; and its key is listed."""

from onceward import Once

once = Once("sqlite:///core.db")
calls = []


@once(key="order.id")
def charge(order: dict) -> str:
    calls.append(order)
    return f"charged {order['id']}"


assert charge({"id": 1}) == charge({"id": 1}) == "charged 1"
assert len(calls) == 1
assert [record.status for record, _ in once.ledger.records()] == ["COMPLETED"]
