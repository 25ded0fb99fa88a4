"""What consumers of any queue need. A new broker is one class: see ``broker``.

- A ``delivery`` is a record of an event or a message of a queue. The ``reader`` makes a function's arguments and key from
  it, with ``payloads`` converted to their annotations.
- A ``worker`` runs one queue of a ``broker``: ``polling`` asks for messages; ``serving`` gives them to a batch, and their
  outcomes to the broker. ``backoff`` says when a message comes again, and ``stop`` handles signals.
- A message that cannot be handled goes into the ledger (``keeping``) or where the broker publishes it (``dead_letters``: the
  names and headers that all brokers share). ``callers`` are threads for clients that block.
- ``tasks`` guards a function of a task queue that calls it itself.
"""
