"""Rules for a single endpoint that a framework has already chosen."""

from onceward.http.rules import Rules, rules_of


def endpoint_rules(rules: Rules | None) -> Rules:
    """Return the rules of an endpoint.

    Raises:
        TypeError: they are not Rules.
        ValueError: they have or exempt paths, so they might not cover the endpoint.
    """
    made = rules_of(rules)
    if made.exempt:
        raise ValueError("exempt=: the endpoint has a path of its own; leave it out, or guard the whole application")
    for route in made.routes:
        if route.path != "*":
            raise ValueError(f"{route!r}: give it no path, for the endpoint has one; or guard the whole application")
    return made
