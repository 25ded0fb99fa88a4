"""HTTP's answers to requests that do not reach the handler, from `onceward.http.problem`."""

import re

from generated.markdown import code, table
from onceward.http import problem

_HEAD = """## HTTP answers

onceward gives these answers itself, in place of the endpoint. They are problem details (RFC 9457), of the type
`application/problem+json`. `type` ends with the fragment, by which a client can tell them apart.
[The Idempotency-Key header](http.md) says when each is given.

"""


def part() -> str:
    """Return the section."""
    problems = [value for value in vars(problem).values() if isinstance(value, problem.Problem)]
    rows = [
        (str(one.status), code(one.kind), one.title, re.sub(r"\{(\w+)\}", r"*\1*", one.detail))
        for one in sorted(problems, key=lambda one: (one.status, one.kind))
    ]
    return _HEAD + table(("status", "fragment", "title", "detail"), rows)
