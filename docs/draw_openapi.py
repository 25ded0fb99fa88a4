"""Write src/onceward/service/openapi.json, the OpenAPI document that the service serves: ``python docs/draw_openapi.py``.

It is made from the bodies and the problems, so what is served is what is described.
"""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.docstrings import describe
from onceward.service import bodies, problems
from onceward.service.problems import ProblemKind

_P: Final = problems
_ALWAYS: Final = (
    _P.MALFORMED, _P.UNKNOWN_CLIENT, _P.FORBIDDEN, _P.SLOW, _P.TOO_LARGE, _P.NOT_JSON, _P.WRONG_HOST, _P.FAILED,
    _P.REFUSED, _P.UNREADY,
)  # fmt: skip
_HELD: Final = (_P.LOST,)
# The actions: what each is for, its body, its answers by status, and its problems.
ACTIONS: Final[dict[str, tuple[str, type[msgspec.Struct], dict[int, type], tuple[ProblemKind, ...]]]] = {
    "claim": (
        "Claim a key, or get its recorded result. Send it again with the same id if its answer is lost.",
        bodies.ClaimBody,
        {201: bodies.Claimed, 200: bodies.Replayed},
        (_P.BUSY, _P.UNAVAILABLE, _P.LOST, _P.MISMATCH, _P.ID_USED, _P.PARKED),
    ),
    "extend": ("Renew a claim while the work goes on.", bodies.ExtendBody, {200: bodies.Extended}, _HELD),
    "step": (
        "Ask for a step of the work. If it is not made, make it, and send its result.",
        bodies.StepBody,
        {200: bodies.StepAnswer},
        (*_HELD, _P.OTHER_RESULT, _P.PARKED),
    ),
    "complete": (
        "Complete a key: duplicates get the result from now on.",
        bodies.CompleteBody,
        {200: bodies.ClaimEnded},
        (*_HELD, _P.OTHER_RESULT),
    ),
    "release": ("Give a key back for a retry.", bodies.ReleaseBody, {200: bodies.ClaimEnded}, _HELD),
    "park": ("Stop retrying a key until an operator unparks it.", bodies.ReleaseBody, {200: bodies.ClaimEnded}, _HELD),
    "look": ("Read what is recorded of a key.", bodies.LookBody, {200: bodies.Looked}, (_P.NOT_FOUND,)),
}
_NAMESPACE: Final = {
    "name": "namespace",
    "in": "path",
    "required": True,
    "description": "The namespace of the key.",
    "schema": {"type": "string", "pattern": bodies.NAMESPACE},
}


def document() -> dict[str, Any]:
    """Return the document."""
    kinds = [kind for _, body, answers, _ in ACTIONS.values() for kind in (body, *answers.values())]
    kinds = [*dict.fromkeys(kinds), bodies.HealthBody, bodies.ProblemBody]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind in kinds:
        describe(schemas[kind.__name__], kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "onceward",
            "version": "1",
            "description": "Handlers of at-least-once messages, tasks and requests take effect exactly once.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": {
            **{f"/v1/{{namespace}}/{action}": {"post": _operation(action)} for action in ACTIONS},
            "/healthz": {"get": _health()},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(action: str) -> dict[str, Any]:
    summary, body, answers, kinds = ACTIONS[action]
    return {
        "operationId": action,
        "summary": summary,
        "parameters": [_NAMESPACE],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {
            **{str(status): _answer(kind) for status, kind in answers.items()},
            **_refusals((*kinds, *_ALWAYS)),
        },
    }


def _health() -> dict[str, Any]:
    return {
        "operationId": "health",
        "summary": "Tell whether this instance and its ledger answer.",
        "security": [],
        "responses": {
            "200": _answer(bodies.HealthBody),
            **_refusals((_P.UNREADY,)),
        },
    }


def _answer(kind: type) -> dict[str, Any]:
    text = (kind.__doc__ or "").split("\n")[0]
    return {"description": text, "content": {"application/json": {"schema": _ref(kind)}}}


def _refusals(kinds: tuple[ProblemKind, ...]) -> dict[str, Any]:
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {
        str(status): {
            "description": "; ".join(f"{kind.word}: {kind.title}" for kind in group),
            "content": {"application/problem+json": {"schema": _ref(bodies.ProblemBody)}},
        }
        for status, group in sorted(by_status.items())
    }


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


PAGE: Final = Path(bodies.__file__).with_name("openapi.json")


def page() -> str:
    """Return the document as text."""
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
