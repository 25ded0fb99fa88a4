"""The ledger, and the state of its model."""
