"""The interleaving explorer: every order of a few workers on one key, and each reachable state checked (``explore``)."""
