"""Ledgers of every store, the hands on their connections, and the cases that all of them pass."""
