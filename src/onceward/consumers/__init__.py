"""What consumers of any queue need. A new broker is one class: see ``broker``.

- A ``delivery`` is a record of an event or a message of a queue. The ``reader`` makes a function's arguments and key from
  it, with ``payloads`` converted to their annotations.
- A ``worker`` runs one queue of a ``broker``: ``polling`` asks for messages; ``serving`` gives them to a batch, and their
  outcomes to the broker. ``backoff`` says when a message comes again, ``keeping`` keeps messages without a dead-letter queue in
  the ledger, ``callers`` are the threads that wait, and ``stop`` handles signals.
"""
