"""The engine of ``onceward pipe``: lines of input, each handled exactly once."""
