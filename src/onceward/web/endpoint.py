"""Rules for a single endpoint, which a framework has chosen already."""

from onceward.web.rules import Rules


def endpoint_rules(rules: Rules | None) -> Rules:
    """Return the rules of an endpoint; None is ``Rules()``.

    Raises:
        ValueError: they have paths, so that they might not cover the endpoint.
    """
    if rules is None:
        return Rules()
    for route in rules.routes:
        if route.path != "*":
            raise ValueError(f"{route!r}: give it no path, for the endpoint has one; or guard the whole application")
    return rules
