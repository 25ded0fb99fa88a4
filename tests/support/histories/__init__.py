"""Histories of ledgers under faults, which another program judges: ``make histories`` (docs/reference/measured.md)."""
