"""The interleaving explorer: every order of a few workers on one key, and each reachable state checked (``explore``).

- ``actors`` are the workers: the protocol's real generators, driven step by step; ``senders`` send messages, and have the points where
  a worker, not the ledger, decides;
- ``moves`` says what may happen next, ``states`` what a state is and how much may go wrong;
- ``invariants`` says what must always hold.
"""
