"""Tells people what is wrong in a ledger: each incident when it begins, and when it is over."""

from onceward.watch.incidents import Incident, IncidentLimits
from onceward.watch.notices import Notice
from onceward.watch.watcher import Watcher

__all__ = ["Incident", "IncidentLimits", "Notice", "Watcher"]
