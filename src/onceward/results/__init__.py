"""How an outcome is recorded and comes back."""
