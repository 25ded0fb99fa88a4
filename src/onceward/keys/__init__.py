"""Which key a call has."""
