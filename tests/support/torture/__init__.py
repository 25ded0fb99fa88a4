"""The torture campaign: random faults at random points, and a checker that reads only a journal and the ledger.

``make torture`` runs it for an hour, ``make torture SEED=7 EPISODES=1`` replays one episode. An episode is made from its
seed alone:

- ``plan`` says who delivers which keys, and what goes wrong where;
- ``actor`` is a worker: a process that delivers keys through ``shapes``, and journals what it did and was told;
- ``points`` strikes at the n-th point where CPython may interrupt onceward's code; ``strikes`` says how;
- ``grounds`` are the ledgers of each store, ``hands`` an actor's own connections to their databases;
- ``wire`` loses requests and replies;
- ``episode`` starts the actors, kills, pauses and interrupts them, and delivers each key once more at the end;
- ``messages`` is what handlers send, its target, and relays; the last one sends what is left;
- ``facts`` reads the journal and the ledger, and ``rules`` and ``message_rules`` are the oracle;
- ``plants`` are bugs that the campaign must find.
"""
