"""Settings of Taskiq that lose tasks. They are refused when the task is decorated, or when its worker starts."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from taskiq import TaskiqMiddleware
from taskiq.acks import AcknowledgeType
from taskiq.middlewares import SimpleRetryMiddleware, SmartRetryMiddleware

if TYPE_CHECKING:
    from taskiq import AsyncBroker

ACK: Final = AcknowledgeType.WHEN_SAVED.value

# Brokers that forget a message when they hand it over.
_FORGETFUL: Final = {
    "ListQueueBroker",
    "ListQueueClusterBroker",
    "ListQueueSentinelBroker",
    "NatsBroker",
    "PubSubBroker",
    "PubSubSentinelBroker",
    "ZeroMQBroker",
}


def check_broker(broker: "AsyncBroker", task: str) -> None:
    """Refuse a broker that loses messages."""
    kinds = {kind.__name__ for kind in type(broker).__mro__}
    if "AsyncSharedBroker" in kinds:
        raise TypeError(f"{task}: a shared task has no broker of its own yet: declare it with @broker.task")
    if kinds & _FORGETFUL:
        raise ValueError(
            f"{task}: {type(broker).__name__} forgets a message when it hands it over, so a crash loses it. Use a broker that "
            "acknowledges, such as RedisStreamBroker"
        )
    if (most := getattr(broker, "maxlen", None)) is not None:
        raise ValueError(f"{task}: maxlen={most} drops messages that wait: leave it out")


def check_retries(broker: "AsyncBroker", tasks: Iterable[str]) -> None:
    """Refuse guarded tasks that are not retried. Taskiq acknowledges what fails, so they would be lost."""
    own = [m for m in broker.middlewares if type(m).on_error is not TaskiqMiddleware.on_error]
    retrying = [m for m in own if isinstance(m, SimpleRetryMiddleware | SmartRetryMiddleware)]
    if len(retrying) < len(own) or any(m.default_retry_label for m in retrying):
        return  # a middleware of the application's own may retry by its own rules
    for name in sorted(tasks):
        task = broker.find_task(name)
        if not retrying or task is None or not task.labels.get("retry_on_error"):
            raise ValueError(
                f"{name}: Taskiq drops a task that fails, unless it retries it. Add SmartRetryMiddleware() to the broker's "
                "middlewares, and retry_on_error=True to the task"
            )
