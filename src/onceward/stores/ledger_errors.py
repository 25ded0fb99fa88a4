"""Why the ledger does not do what a person asks of it."""

from onceward.errors import OncewardError


class NotFound(OncewardError):
    """There is no record of that key.

    Cause: The key has another namespace, has expired, or was cleared.

    Fix: Look for it with ``onceward ls --prefix``, or give ``onceward show`` the client's own key.
    """


class KeepsMessage(OncewardError):
    """The record keeps a message that is in no queue any more. Clearing the record would lose it.

    Cause: A worker of a queue without a dead-letter queue has kept the message in its record.

    Fix: Send it again with ``onceward unpark KEY --to QUEUE``. To lose it, run ``onceward clear KEY``, and confirm.
    """


class HasUnsent(OncewardError):
    """The record has messages that its handler sent and no target got yet. Without the record they would be lost.

    Cause: The handler completed, and the relay has not sent its messages yet.

    Fix: Run ``onceward relay``. To lose the messages, pass ``--lose-messages``.
    """
