"""Moving dead letters back together with their keys."""
