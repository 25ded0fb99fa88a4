"""NATS JetStream: a worker for a subject, with dead letters, and messages that leave with a record.

``worker`` is over its ``broker``, which has ``settings`` (what a stream and a consumer lose), and ``message``. ``target`` is the
outbox's. FastStream's handlers of NATS are in ``faststream/``.
"""

from typing import TYPE_CHECKING

try:
    import nats  # noqa: F401 - only to say what is missing
except ImportError as missing:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("NATS needs its client: pip install 'onceward[nats]'") from missing

if TYPE_CHECKING:
    from onceward.consumers.sending import send, send_async
    from onceward.nats.target import NatsTarget
    from onceward.nats.worker import NatsWorker

__all__ = ["NatsTarget", "NatsWorker", "send", "send_async"]

_HOMES = {"..consumers.sending": ("send", "send_async"), ".target": ("NatsTarget",), ".worker": ("NatsWorker",)}


def __getattr__(name: str) -> object:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
