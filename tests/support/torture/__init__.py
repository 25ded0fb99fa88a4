"""The torture campaign: random faults at random points, and a checker that reads only a journal and the ledger.

``make torture`` runs it for an hour, ``make torture SEED=7 EPISODES=1`` replays one episode, which is made from its seed alone.
"""
