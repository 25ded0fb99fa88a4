"""What consumers of any queue need. A new broker is one class: see ``broker``.

- A record of an event or a message of a queue is a ``delivery``; the ``reader`` makes it a function's arguments and key.
- A ``worker`` runs one queue of a ``broker``: ``polling`` asks for messages, ``serving`` hands them to a batch, and tells the
  broker what became of each. ``backoff`` says when one comes again, ``keeping`` keeps in the ledger what no dead-letter
  queue takes, ``callers`` are the threads that wait, and ``stop`` hears signals.
"""
